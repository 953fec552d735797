"""Exceptions that `graders` raises on purpose, as one tree.

GraderError
├── UnknownGrader        no grader has that name or specification
├── BadGrader            the object is not a grader, or does not return a Verdict
├── BadReference         the grader cannot read a reference
├── BadInput             an argument, file or record cannot be used
└── SandboxUnavailable   this machine cannot provide the required isolation
"""


class GraderError(Exception):
    """Base class; the message states what was expected, what was found, where, and the remedy."""


class UnknownGrader(GraderError):
    """No grader has that name or specification."""


class BadGrader(GraderError):
    """The object is not a grader, or does not return a `Verdict`."""


class BadReference(GraderError):
    """The grader cannot read a reference."""


class BadInput(GraderError):
    """An argument, file or record cannot be used."""


class SandboxUnavailable(GraderError):
    """This machine cannot provide the required isolation."""
