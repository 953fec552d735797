#!/usr/bin/env bash
# The main job on the CPU, from nothing: sets up the environment, then trains and reports into runs/quickstart.
# More arguments go to `mathppo train`, for instance `scripts/quickstart.sh --run-dir runs/seed2 --run.seed=2`.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"
environment
cd "$ROOT"
exec "$VENV/bin/mathppo" train --config mathppo/recipes/quickstart.toml --run-dir runs/quickstart "$@"
