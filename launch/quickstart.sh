#!/usr/bin/env bash
# Sets up .venv, fetches the example data and runs the quick start: 12 to 30 minutes on two cores, install apart.
# Usage: ./launch/quickstart.sh [FOLDER]     (default: quickstart)
# shellcheck source=launch/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh" ""

folder=${1:-quickstart}

# On a CPU under Linux, XLA asks the system for fresh memory at every step; keeping it, in large pages, which only a new
# process can ask for, saves a quarter of the time.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000000:glibc.malloc.top_pad=268435456}
exec "$python" launch/quickstart --workdir="$folder"
