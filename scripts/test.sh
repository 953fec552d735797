#!/usr/bin/env bash
# Runs the tests, with its own set-up. Arguments go to pytest: `scripts/test.sh tests/unit -k gae`, `scripts/test.sh -m slow`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment dev
cd "$ROOT"

# One process per core, four at most, with one thread each: more of either only wait for one another.
export OMP_NUM_THREADS=1
exec "$VENV/bin/python" -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
