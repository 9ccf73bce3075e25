#!/usr/bin/env bash
# The job that slurm.sh queues: slurm_job.sh PYTHON PROGRAM ARGUMENT...

set -euo pipefail

if [[ $# -lt 3 ]]; then
  echo "error: this is the job of launch/cluster/slurm.sh; start that" >&2
  exit 2
fi

# The processes find each other through what srun sets. It does not hand the job's CPUs on by itself.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
status=0
srun --kill-on-bad-exit=1 "$@" || status=$?

# 143: saved, as SLURM said that the time is over (--signal). A failed node or a preemption requeues the job by itself.
if [[ "$status" == 143 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
