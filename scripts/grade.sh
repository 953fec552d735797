#!/usr/bin/env bash
# Grades rollouts in the sandbox and assigns rewards; `scripts/grade.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" grade "$@"
