#!/usr/bin/env bash
# Sets up .venv, lints, checks the types and runs the tests. Arguments go to pytest: ./launch/test.sh -m slow tests/pretrain_test.py
# shellcheck source=launch/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh" test

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
# Several processes, as most of the time is compilation; a file stays in one, for what its tests share.
exec "$python" -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@"
