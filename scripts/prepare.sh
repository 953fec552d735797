#!/usr/bin/env bash
# Writes training and held-out problems and a contamination report; `scripts/prepare.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" prepare "$@"
