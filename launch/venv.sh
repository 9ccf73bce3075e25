# shellcheck shell=bash
# Sourced by the two commands of the README: makes .venv in the repository's root, installs the package with the
# extras in $1 (may be empty), and leaves $python pointing at it. Set PYTHON to choose an interpreter.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "error: no Python >= 3.11 found; install one, or name it: PYTHON=/path/to/python3.12 $0" >&2
  return 1
}

python=.venv/bin/python
if [ ! -x "$python" ]; then
  interpreter=$(find_python)
  echo "making .venv with $("$interpreter" --version)"
  "$interpreter" -m venv .venv || { rm -rf .venv; echo "error: python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
fi
# Install again only when what is asked for has changed.
stamp=".venv/installed-${1:-base}"
if [ ! -e "$stamp" ] || [ setup.cfg -nt "$stamp" ]; then
  echo "installing gpt1-jax${1:+[$1]} into .venv (one to four minutes)"
  "$python" -m pip install --quiet --no-compile --disable-pip-version-check --editable ".${1:+[$1]}"
  "$python" -m compileall -qq -j 0 .venv/lib || true # pip would use one core; templates that are no Python are left
  touch "$stamp"
fi
