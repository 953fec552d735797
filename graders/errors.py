"""What can go wrong in `graders`, as one tree.

GraderError
├── UnknownGrader        no grader of that name or specification
├── BadGrader            the object found is not a grader, or gives what is no verdict
├── BadReference         a reference that the grader cannot read
├── BadInput             a call, file or record that cannot be used
└── SandboxUnavailable   the isolation that was asked for cannot be had here
"""


class GraderError(Exception):
    """Root of every error raised on purpose; its text says what was expected, got, where, and the remedy."""


class UnknownGrader(GraderError):
    """No grader of that name or specification."""


class BadGrader(GraderError):
    """The object found is not a grader, or gives what is no verdict."""


class BadReference(GraderError):
    """A reference that the grader cannot read."""


class BadInput(GraderError):
    """A call, file or record that cannot be used."""


class SandboxUnavailable(GraderError):
    """The isolation that was asked for cannot be had on this machine."""
