"""Grades completions against reference answers in killable, sandboxed worker processes.

from graders import grade
grade("so it is \\boxed{1/2}", "0.5").status        # correct
"""

from graders.errors import BadGrader, BadInput, BadReference, GraderError, SandboxUnavailable, UnknownGrader
from graders.grader import GraderOptions, register
from graders.sandbox.host.pool import GraderPool, grade
from graders.verdict import Status, Verdict

__all__ = [
    "BadGrader",
    "BadInput",
    "BadReference",
    "GraderError",
    "GraderOptions",
    "GraderPool",
    "SandboxUnavailable",
    "Status",
    "UnknownGrader",
    "Verdict",
    "grade",
    "register",
]
