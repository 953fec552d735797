"""What can go wrong in `mathppo`, as one tree.

    MathPPOError
    ├── BadSetting       an unknown key or a value out of range
    ├── BadInput         a file, record or problem that cannot be used
    ├── BadArtefact      a stage's output that is missing, damaged or of another kind
    ├── BadCheckpoint    weights that are missing, damaged or of another model
    ├── BrokenInvariant  a run-time truth of the learner does not hold
    └── StageFailed      the work itself found a failure

A message says what was expected, what came, where, and what to do. The CLI prints it as one line: exit code 1 for the
last two, 2 for the others.
"""


class MathPPOError(Exception):
    """Root of every error this package raises on purpose."""

    exit_code = 2


class BadSetting(MathPPOError):
    """An unknown key or a value out of range."""


class BadInput(MathPPOError):
    """A file, record or problem that cannot be used."""


class BadArtefact(MathPPOError):
    """A stage's output that is missing, damaged or of another kind."""


class BadCheckpoint(MathPPOError):
    """Weights that are missing, damaged or of another model."""


class BrokenInvariant(MathPPOError):
    """A run-time truth of the learner does not hold; training on would teach nonsense."""

    exit_code = 1


class StageFailed(MathPPOError):
    """The work itself found a failure, such as too many grader errors."""

    exit_code = 1
