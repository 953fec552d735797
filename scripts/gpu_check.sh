#!/usr/bin/env bash
# Checks the learner on a GPU in under 8 minutes: the tests marked gpu, then the benchmark.
#
# Needs a Python with torch (2.11 or later) and transformers (5.17 or later), but no vLLM and no network. Set PYTHON to
# choose it. If it lacks pytest, hypothesis or msgspec, they are imported from the folder .gpu_packages, which can be
# created on another machine with the same version of Python:
#   pip install --target .gpu_packages --no-deps \
#       pytest pluggy iniconfig pygments hypothesis sortedcontainers jaxtyping wadler-lindig msgspec
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
export PYTHONPATH="$PWD:$PWD/tests:$PWD/.gpu_packages${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
# Some tests compare runs bit by bit; cuBLAS is deterministic only with a fixed workspace size.
export CUBLAS_WORKSPACE_CONFIG=:4096:8

"$PYTHON" - <<'PY'
import sys, torch, transformers
if not torch.cuda.is_available():
    sys.exit("error: expected a GPU that torch sees, found none; run scripts/test.sh for a CPU")
print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}")
PY
failed=""
# tiny_learner uses device `auto`: these are the CPU tests with the models on the GPU.
tests=(tests/unit/mathppo/learner)
if "$PYTHON" -c "import scipy" 2>/dev/null; then tests+=(tests/integration/test_generation.py); fi
# Warnings are not errors here: many come from drivers and devices.
timeout 240 "$PYTHON" -m pytest -q -p no:cacheprovider -W default -m gpu "${tests[@]}" || failed="$failed tests"
for packing in padded packed; do
    timeout 90 "$PYTHON" scripts/bench_learner.py --rows 32 --uneven --micro-batch-tokens 8192 --dtype bfloat16 \
        --packing "$packing" --repeats 3 || failed="$failed bench-$packing"
done
[ -z "$failed" ] || { echo "gpu check failed:$failed" >&2; exit 1; }
echo "gpu check passed"
