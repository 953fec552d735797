#!/usr/bin/env bash
# Makes a problem set, its split and its contamination report; `scripts/prepare.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" prepare "$@"
