# Sourced by the other scripts: creates and updates the project's environment, `.venv`.
#
#   environment            the project and its dependencies, at the versions of constraints.txt
#   environment figures    the same, and matplotlib
#   environment dev        the same, and the tools for tests and checks
#
# A stamp file in `.venv` has a hash of what was installed; only a changed pyproject.toml or constraints.txt installs
# again. Set PYTHON to choose the interpreter. Needs no root and changes nothing outside the repository.

set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
MIN_MINOR=11

die() {
    echo "error: $*" >&2
    exit 2
}

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

# Prints the first interpreter that is new enough and can create environments, or fails with what is missing.
find_python() {
    local candidate version too_old="" no_venv=""
    local candidates=(python3 python3.13 python3.12 python3.11 python3.14 python)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        version="$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || continue
        if [ "${version%%.*}" -ne 3 ] || [ "${version#*.}" -lt "$MIN_MINOR" ]; then
            too_old="$too_old $candidate=$version"
        elif ! "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            no_venv="$candidate ($version)"
        else
            command -v "$candidate"
            return
        fi
    done
    if [ -n "$no_venv" ]; then
        die "$no_venv: expected the modules venv and ensurepip, found them missing; install your system's package for" \
            "them (Debian and Ubuntu: python3-venv), or set PYTHON to another Python >= 3.$MIN_MINOR"
    fi
    die "expected Python >= 3.$MIN_MINOR, found${too_old:- none}; install one, or set PYTHON to its path"
}

# Succeeds if that extra was installed from the current files.
is_installed() {
    [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" = "$2" ]
}

environment() {
    local extra="${1:-}" wanted python quiet=""
    wanted="$({ echo "$ROOT"; cat "$ROOT/pyproject.toml" "$ROOT/scripts/constraints.txt"; } | sha256)"
    if [ -x "$VENV/bin/python" ]; then
        if is_installed dev "$wanted" || is_installed "${extra:-run}" "$wanted"; then return; fi
    fi

    # An environment of another path, or without interpreter, is recreated; ours is updated.
    if [ ! -x "$VENV/bin/python" ] || [ "$(cat "$VENV/.made-for" 2>/dev/null)" != "$ROOT" ]; then
        python="$(find_python)" || exit $?
        echo "creating the environment .venv with $python" >&2
        "$python" -m venv --clear "$VENV" || die "$python -m venv failed; see its message above"
        echo "$ROOT" >"$VENV/.made-for"
    fi
    echo "installing mathppo${extra:+ with extra $extra} into .venv (once; takes minutes, mostly for torch)" >&2
    rm -f "$VENV"/.installed-*
    [ -t 2 ] || quiet="--quiet"
    "$VENV/bin/python" -m pip install $quiet --no-input --disable-pip-version-check \
        --constraint "$ROOT/scripts/constraints.txt" --editable "$ROOT${extra:+[$extra]}" </dev/null >&2 ||
        die "pip could not install the project; see its message above; re-run to resume"
    echo "$wanted" | tee "$VENV/.installed-run" >"$VENV/.installed-${extra:-run}"
}
