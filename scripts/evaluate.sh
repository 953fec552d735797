#!/usr/bin/env bash
# Evaluates a checkpoint on problem sets; `scripts/evaluate.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" evaluate "$@"
