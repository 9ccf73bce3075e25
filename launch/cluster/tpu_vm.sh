#!/usr/bin/env bash
# Trains on a TPU VM or a slice of a pod: asks for the machines, installs, starts the program on all of them, and after
# a preemption asks again. The same command goes on with the run. It has to keep running (in tmux, say), and needs gcloud,
# logged in (gcloud auth login). What is committed is what is installed.
#
# Usage: [NAME=value ...] launch/cluster/tpu_vm.sh --config=configs/pretrain.py --workdir=gs://bucket/run ...
#
#   PROJECT, ZONE      of Google Cloud; default: those of gcloud config
#   NODE               name of the TPU (gpt1)
#   TYPE               accelerator type (v5litepod-8): v5litepod-N, v5p-N, v6e-N, v4-N
#   RUNTIME            software of the TPU VM; default: the one for TYPE
#   SPOT=1             cheaper, and may be preempted at any time
#   SERVICE_ACCOUNT    that may write to the bucket; default: the project's own
#   PROGRAM            launch/pretrain.py, or another program of launch/
#   KEEP=1             does not delete the TPU at the end
#   DRY_RUN=1          prints the commands

# shellcheck source=launch/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

NODE=${NODE:-gpt1}
TYPE=${TYPE:-v5litepod-8}
PROGRAM=${PROGRAM:-launch/pretrain.py}
NEEDS_BUCKET=1

case "$TYPE" in
  v6e-*) default=v2-alpha-tpuv6e ;;
  v5p-*) default=v2-alpha-tpuv5 ;;
  v5litepod-*) default=v2-alpha-tpuv5-lite ;;
  v4-*) default=tpu-ubuntu2204-base ;;
  *) default="" ;;
esac
RUNTIME=${RUNTIME:-$default}
[[ -n "$RUNTIME" ]] || usage "TYPE=$TYPE is none of v5litepod-N, v5p-N, v6e-N, v4-N; give RUNTIME with it"
trained_with "$@"

place=()
[[ -z "${ZONE:-}" ]] || place+=(--zone="$ZONE")
[[ -z "${PROJECT:-}" ]] || place+=(--project="$PROJECT")

asked=(--node-id="$NODE" --accelerator-type="$TYPE" --runtime-version="$RUNTIME")
asked+=(--scopes=https://www.googleapis.com/auth/cloud-platform)
[[ -z "${SERVICE_ACCOUNT:-}" ]] || asked+=(--service-account="$SERVICE_ACCOUNT")
[[ "${SPOT:-0}" != 1 ]] || asked+=(--spot)

on_all() { run gcloud compute tpus tpu-vm ssh "$NODE" "${place[@]}" --worker=all --command="$1"; }

state() {
  gcloud compute tpus queued-resources describe "$NODE" "${place[@]}" --format='value(state.state)' 2>/dev/null || true
}

give_back() {
  run gcloud compute tpus queued-resources delete "$NODE" "${place[@]}" --force --quiet
}

# A request that has got its machines is ACTIVE; one that lost them is SUSPENDED, and has to be made anew.
ask_and_wait() {
  if [[ "${DRY_RUN:-0}" == 1 ]]; then
    run gcloud compute tpus queued-resources create "$NODE" "${place[@]}" "${asked[@]}"
    return
  fi
  local now
  while now=$(state) && [[ "$now" != ACTIVE ]]; do
    case "$now" in
      "") run gcloud compute tpus queued-resources create "$NODE" "${place[@]}" "${asked[@]}" ;;
      SUSPENDING) ;;
      SUSPENDED | FAILED) give_back ;;
      *) echo "$NODE: $now" ;;
    esac
    sleep 30
  done
}

install() {
  local archive
  archive=$(mktemp -d)/gpt1.tar.gz
  run git -C "$(dirname "${BASH_SOURCE[0]}")/../.." archive --format=tar.gz --output="$archive" HEAD &&
    run gcloud compute tpus tpu-vm scp "$archive" "$NODE": "${place[@]}" --worker=all &&
    on_all 'set -e; mkdir -p gpt1 && tar -xzf gpt1.tar.gz -C gpt1 && cd gpt1 && python3 -m pip install --quiet --user uv
      test -x .venv/bin/python || ~/.local/bin/uv venv --quiet --python=3.12 .venv
      ~/.local/bin/uv pip install --quiet --python=.venv/bin/python --editable ".[tpu,gcs]"'
}

# A machine that has just come up does not take connections at once.
install_patiently() {
  local attempt
  for attempt in {1..5}; do
    install && return
    echo "$NODE: attempt $attempt of 5 to install failed" >&2
    sleep 30
  done
  return 1
}

# What a lost connection has left running would hold the chips and the run's lock. (It does not match itself.)
stop_leftovers() {
  on_all 'for i in {1..60}; do pkill -TERM -f "[.]venv/bin/python launch/" || break; sleep 2; done'
}

while true; do
  ask_and_wait
  status=0
  install_patiently && stop_leftovers && on_all "cd gpt1 && exec .venv/bin/python $PROGRAM ${*@Q}" || status=$?
  # 0: done; 1: diverged, or a bug; 2: bad input. Anything else came from outside, and so does any of a TPU that is gone:
  # gcloud ends with 1 where it finds none.
  [[ "${DRY_RUN:-0}" != 1 && "$status" != 0 ]] || break
  [[ "$status" -gt 2 || "$(state)" != ACTIVE ]] || break
  echo "$NODE: ended with status $status; the run goes on when the TPU is there again" >&2
  sleep 60
done
[[ "${KEEP:-0}" == 1 ]] || give_back
exit "$status"
