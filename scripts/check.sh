#!/usr/bin/env bash
# Checks without changing anything: ruff, formatting, types, import contracts, the rules of the house (tests/meta), and
# the dims and dtypes of every tensor signature, at each call that the tests of the tensor maths make.
# Runs all of them even where one fails; exits 1 if any did.
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
check house "$VENV/bin/python" -m pytest -q tests/meta
# Left out: tests that pass wrong shapes on purpose to read the function's own refusal.
check shapes "$VENV/bin/python" -m pytest -q tests/unit/mathppo/ppo -k "not refus" \
    --jaxtyping-packages="mathppo.ppo,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
check pyright "$VENV/bin/pyright" --pythonpath "$VENV/bin/python"
if [ -n "$failed" ]; then
    echo "check failed:$failed" >&2
    exit 1
fi
echo "all checks passed"
