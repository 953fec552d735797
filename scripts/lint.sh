#!/usr/bin/env bash
# Applies ruff's fixes and formatting. `scripts/check.sh` lists what remains.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment dev
cd "$ROOT"
"$VENV/bin/ruff" check --fix "$@" || true
exec "$VENV/bin/ruff" format
