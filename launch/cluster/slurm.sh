#!/usr/bin/env bash
# Trains on GPUs under SLURM. Before its time is over, or when it is preempted, a job saves and goes back into the queue,
# and goes on with the run when it starts again.
#
# Usage: [NAME=value ...] launch/cluster/slurm.sh --config=configs/pretrain.py --workdir=/shared/run ...
#
#   NODES              how many (1)
#   GPUS               on each (8)
#   PER=node           one process for all GPUs of a node (the default), or PER=gpu: one for each
#   CPUS               cores for each GPU (8)
#   TIME               of a job (24:00:00); the run takes as many jobs as it needs
#   GRACE              seconds before the end at which a job is told to save (300)
#   PYTHON             interpreter that has gpt1-jax[cuda12] (.venv/bin/python)
#   SBATCH             further options of sbatch, such as "--partition=gpu --account=me"
#   PROGRAM            launch/pretrain.py, or another program of launch/
#   DRY_RUN=1          prints the command

# shellcheck source=launch/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

NODES=${NODES:-1}
GPUS=${GPUS:-8}
PER=${PER:-node}
CPUS=${CPUS:-8}
TIME=${TIME:-24:00:00}
GRACE=${GRACE:-300}
PYTHON=${PYTHON:-.venv/bin/python}
PROGRAM=${PROGRAM:-launch/pretrain.py}

case "$PER" in
  node) tasks=1 cores=$((CPUS * GPUS)) ;;
  gpu) tasks=$GPUS cores=$CPUS ;;
  *) usage "PER=$PER is neither node nor gpu" ;;
esac
trained_with "$@"

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
read -r -a more <<<"${SBATCH:-}"
run sbatch --job-name=gpt1 --nodes="$NODES" --ntasks-per-node="$tasks" --gres=gpu:"$GPUS" --cpus-per-task="$cores" \
  --time="$TIME" --signal=TERM@"$GRACE" --requeue --open-mode=append --output=slurm-%j.log "${more[@]}" \
  launch/cluster/slurm_job.sh "$PYTHON" "$PROGRAM" "$@"
