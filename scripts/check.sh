#!/usr/bin/env bash
# Checks without changing files: ruff, formatting, types, import contracts, the meta tests, and the dims and dtypes of
# each tensor signature in mathppo.ppo, at each call in its tests. Runs all checks; exits 1 if any failed.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment dev
cd "$ROOT"

failed=""
check() {
    local name="$1"
    shift
    echo "== $name"
    "$@" || failed="$failed $name"
}
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1 OMP_NUM_THREADS=1
check ruff "$VENV/bin/ruff" check
check format "$VENV/bin/ruff" format --check
check imports "$VENV/bin/lint-imports" --no-logo
check meta "$VENV/bin/python" -m pytest -q tests/meta
# Excludes tests that pass wrong shapes on purpose to check the function's own error message.
check shapes "$VENV/bin/python" -m pytest -q tests/unit/mathppo/ppo -k "not (refus or reject or errors_name)" \
    --jaxtyping-packages="mathppo.ppo,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
check pyright "$VENV/bin/pyright" --pythonpath "$VENV/bin/python"
if [ -n "$failed" ]; then
    echo "check failed:$failed" >&2
    exit 1
fi
echo "all checks passed"
