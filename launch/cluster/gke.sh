#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster that xpk has made (pip install xpk). A workload that is stopped starts again by
# itself, and goes on with the run. Needs xpk, kubectl and Docker.
#
# Usage: CLUSTER=name [NAME=value ...] launch/cluster/gke.sh --config=configs/pretrain.py --workdir=gs://bucket/run ...
#
#   CLUSTER            of xpk cluster create; required
#   PROJECT, ZONE      of Google Cloud; default: those of gcloud config
#   WORKLOAD           its name, one that is not in use (gpt1)
#   TYPE               TPU type of the cluster (v5litepod-16)
#   SLICES             how many slices (1)
#   IMAGE              Docker image below the repository (python:3.12)
#   RESTARTS           how often it starts again (50)
#   GRACE              seconds between SIGTERM and SIGKILL (120): for the step in progress and the save
#   PROGRAM            launch/pretrain.py, or another program of launch/
#   DRY_RUN=1          prints the commands

# shellcheck source=launch/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORKLOAD=${WORKLOAD:-gpt1}
TYPE=${TYPE:-v5litepod-16}
SLICES=${SLICES:-1}
IMAGE=${IMAGE:-python:3.12}
RESTARTS=${RESTARTS:-50}
GRACE=${GRACE:-120}
PROGRAM=${PROGRAM:-launch/pretrain.py}
NEEDS_BUCKET=1

needed CLUSTER
trained_with "$@"

place=(--cluster="$CLUSTER")
[[ -z "${ZONE:-}" ]] || place+=(--zone="$ZONE")
[[ -z "${PROJECT:-}" ]] || place+=(--project="$PROJECT")

# What is committed goes into the image. xpk passes a SIGTERM on to the command, and starts again what ends with a status
# from 127 on: 143, saved on SIGTERM, but neither 1 (diverged, or a bug) nor 2 (bad input).
root=$(dirname "${BASH_SOURCE[0]}")/../..
folder=$(mktemp -d)
run git -C "$root" archive --format=tar --output="$folder.tar" HEAD
run tar -xf "$folder.tar" -C "$folder"
run xpk workload create "${place[@]}" --workload="$WORKLOAD" --tpu-type="$TYPE" --num-slices="$SLICES" \
  --base-docker-image="$IMAGE" --script-dir="$folder" --max-restarts="$RESTARTS" \
  --termination-grace-period-seconds="$GRACE" \
  --command="python -m pip install --quiet --editable '.[tpu,gcs]' && exec python $PROGRAM ${*@Q}"
