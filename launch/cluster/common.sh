# shellcheck shell=bash
# Sourced by the launchers of this folder: how they run a command, or with DRY_RUN=1 print it, and how they refuse.

set -euo pipefail

# usage MESSAGE: the message, then the comment at the top of the launcher itself.
usage() {
  echo "error: $1" >&2
  echo >&2
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

# needed NAME...: these variables have values.
needed() {
  local name
  for name in "$@"; do
    [[ -n "${!name:-}" ]] || usage "$name is not set"
  done
}

# trained_with ARGUMENT...: what goes to launch/pretrain.py is there, and its workdir is one that all machines reach.
trained_with() {
  local argument workdir=""
  for argument in "$@"; do
    case "$argument" in
      --workdir=*) workdir=${argument#--workdir=} ;;
      --*) ;; # also of a switch, such as --config.mesh.shard_optimizer
      *) usage "unexpected argument '$argument'; values are given as --name=value" ;;
    esac
  done
  [[ -n "$workdir" ]] || usage "--workdir=... is missing"
  if [[ -n "${NEEDS_BUCKET:-}" && "$workdir" != gs://* ]]; then
    usage "--workdir=$workdir: these machines share no disk, and lose theirs; give gs://bucket/folder"
  fi
}

# run COMMAND...: runs it, or prints it as a line that a shell would read.
run() {
  if [[ "${DRY_RUN:-0}" == 1 ]]; then
    printf '%s\n' "${*@Q}"
  else
    "$@"
  fi
}
