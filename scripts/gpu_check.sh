#!/usr/bin/env bash
# Checks the learner on a GPU in under 8 minutes: the learner's tests with its models there, then the benchmark.
#
# Runs with whatever Python has torch (2.11 or later) and transformers (5.17 or later); needs no vLLM and no network.
# Set PYTHON to choose it. What pytest, hypothesis and msgspec lack there is installed by `pip install -e ".[dev]"`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1

"$PYTHON" - <<'PY'
import sys, torch, transformers
if not torch.cuda.is_available():
    sys.exit("error: expected a GPU that torch sees, found none; run scripts/test.sh for a CPU")
print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}")
PY
failed=""
# tiny_learner leaves `device` at auto: these are the same tests as on a CPU, with the models on the GPU.
timeout 240 "$PYTHON" -m pytest -q -p no:cacheprovider tests/unit/mathppo/learner || failed="$failed tests"
timeout 200 "$PYTHON" scripts/bench_learner.py --rows 64 --micro-batch-tokens 32768 --dtype bfloat16 --repeats 3 ||
    failed="$failed bench"
[ -z "$failed" ] || { echo "gpu check failed:$failed" >&2; exit 1; }
echo "gpu check passed"
