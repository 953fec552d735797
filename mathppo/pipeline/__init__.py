"""The stages: the only room, beside the command line, that sees every other.

    prepare → (warmstart) → generate → grade → learn → evaluate

Each is a function here, a verb of `mathppo`, and a script; `train` runs them all in one process.
"""

from mathppo.pipeline.stages.prepare import prepare
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.pipeline.train import train

__all__ = ["prepare", "train", "warmstart"]
