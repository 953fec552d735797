#!/usr/bin/env bash
# Updates policy and critic from scored rollouts; `scripts/learn.sh --help` lists the arguments.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
exec "$VENV/bin/mathppo" learn "$@"
