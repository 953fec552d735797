"""Pipeline: the stages, and `train`, which runs them all in one process.

    prepare → (warmstart) → generate → grade → learn → evaluate

Besides the command line, it is the only package that imports every other one.
"""

from mathppo.pipeline.stages.prepare import prepare
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.pipeline.train import train

__all__ = ["prepare", "train", "warmstart"]
