"""The stages: the only room, beside the command line, that sees every other.

    prepare → (warmstart) → generate → grade → learn → evaluate

Each is a function here, a verb of `mathppo`, and a script; `train` runs them all in one process.

Touches: nothing of its own.
"""

from mathppo.pipeline.prepare import prepare
from mathppo.pipeline.train import train
from mathppo.pipeline.warmstart import warmstart

__all__ = ["prepare", "train", "warmstart"]
