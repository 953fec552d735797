#!/usr/bin/env bash
# Samples completions for problems from a checkpoint; `scripts/generate.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" generate "$@"
