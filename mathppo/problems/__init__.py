"""Problems: built-in families by level with a held-out split, and loaders for files and hub data sets.

Touches: nothing.
"""

from mathppo.problems.sampling import LINEAR_MIX, demonstrate, forms, sample_problems, split_of

__all__ = ["LINEAR_MIX", "demonstrate", "forms", "sample_problems", "split_of"]
