"""Exceptions of `mathppo`.

    MathPPOError
    ├── BadSetting       an unknown key or a value out of range
    ├── BadInput         a file, record or problem that cannot be used
    ├── BadArtefact      a stage's output that is missing, damaged or of another kind
    ├── BadCheckpoint    weights that are missing, damaged or of another model
    ├── BrokenInvariant  an invariant of the learner is violated
    └── StageFailed      the work failed, for example because of too many grader errors

A message names what was expected, what was found, where, and the remedy. The CLI prints it as one line and exits with
1 for the last two, with 2 for the others.
"""


class MathPPOError(Exception):
    """Base class of the errors that this package raises."""

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
    """An invariant of the learner is violated; further updates would be wrong."""

    exit_code = 1


class StageFailed(MathPPOError):
    """The work failed, for example because of too many grader errors."""

    exit_code = 1
