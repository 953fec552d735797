# Sourced by the scripts beside it: makes and enters the project's own environment, `.venv`.
#
#   environment        the project and what it needs to run, at the versions of constraints.txt
#   environment dev    the same, and what the tests and checks need
#
# A stamp inside `.venv` holds a hash of what was installed, so that only a changed pyproject.toml or constraints.txt
# installs again. Set PYTHON to choose the interpreter. Needs no root and changes nothing outside the repository.

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

# Prints the first interpreter that is new enough and can make environments; otherwise says what is missing.
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

# Says whether the install of that name in the environment was made from these very files.
is_installed() {
    [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" = "$2" ]
}

environment() {
    local extra="${1:-}" wanted python quiet=""
    wanted="$({ echo "$ROOT"; cat "$ROOT/pyproject.toml" "$ROOT/scripts/constraints.txt"; } | sha256)"
    if [ -x "$VENV/bin/python" ]; then
        if is_installed dev "$wanted" || { [ -z "$extra" ] && is_installed run "$wanted"; }; then return; fi
    fi

    # One that was made for another path, or that lost its interpreter, is made anew; ours is brought up to date.
    if [ ! -x "$VENV/bin/python" ] || [ "$(cat "$VENV/.made-for" 2>/dev/null)" != "$ROOT" ]; then
        python="$(find_python)" || exit $?
        echo "making the environment .venv with $python" >&2
        "$python" -m venv --clear "$VENV" || die "$python -m venv failed; its own message stands above"
        echo "$ROOT" >"$VENV/.made-for"
    fi
    echo "installing mathppo${extra:+ and its $extra tools} into .venv (once; minutes, most of them for torch)" >&2
    rm -f "$VENV/.installed-run" "$VENV/.installed-dev"
    [ -t 2 ] || quiet="--quiet"
    "$VENV/bin/python" -m pip install $quiet --no-input --disable-pip-version-check \
        --constraint "$ROOT/scripts/constraints.txt" --editable "$ROOT${extra:+[$extra]}" </dev/null >&2 ||
        die "pip could not install the project; its own message stands above; running this again goes on from there"
    echo "$wanted" >"$VENV/.installed-${extra:-run}"
}
