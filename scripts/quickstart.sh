#!/usr/bin/env bash
# The main job on the CPU: sets up the environment, trains, and writes runs/quickstart/report.html.
# Arguments go to `mathppo train`, for example `scripts/quickstart.sh --run-dir runs/seed2 --run.seed=2`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
cd "$ROOT"
exec "$VENV/bin/mathppo" train --config mathppo/recipes/quickstart.toml --run-dir runs/quickstart "$@"
