#!/usr/bin/env bash
# Sets up the environment and runs the tests. Arguments go to pytest: `scripts/test.sh tests/unit -k gae`, `scripts/test.sh -m slow`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment dev
cd "$ROOT"

# At most four processes with one thread each; more do not run faster.
export OMP_NUM_THREADS=1
# pytest caches rewritten test modules as bytecode; without the cache, collection takes about twice the time.
unset PYTHONDONTWRITEBYTECODE
exec "$VENV/bin/python" -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
