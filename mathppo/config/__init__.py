"""Settings of a run: typed sections, TOML files, and dotted overrides such as `--learner.lr=1e-6`."""

from mathppo.config.learner_settings import LearnerSettings
from mathppo.config.settings import (
    Config,
    GeneratorSettings,
    GraderSettings,
    ModelSettings,
    ProblemsSettings,
    RewardSettings,
    WarmstartSettings,
    encode_config,
    load_config,
    settings_of,
)

__all__ = [
    "Config",
    "GeneratorSettings",
    "GraderSettings",
    "LearnerSettings",
    "ModelSettings",
    "ProblemsSettings",
    "RewardSettings",
    "WarmstartSettings",
    "encode_config",
    "load_config",
    "settings_of",
]
