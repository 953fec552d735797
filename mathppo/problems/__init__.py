"""Problems: built-in families with levels and a held-out split, and loaders for files and hub data sets."""

from mathppo.problems.held_out import HELD_OUT_COUNTS, load_held_out
from mathppo.problems.load import load_problems
from mathppo.problems.sampling import (
    LINEAR_MIX,
    Mix,
    Split,
    canonical_forms,
    demonstrate,
    held_out_set,
    sample_problems,
    split_of,
)

__all__ = [
    "HELD_OUT_COUNTS",
    "LINEAR_MIX",
    "Mix",
    "Split",
    "canonical_forms",
    "demonstrate",
    "held_out_set",
    "load_held_out",
    "load_problems",
    "sample_problems",
    "split_of",
]
