"""Diagnostics: error texts for exceptions of untrusted code and for operating-system resource limits."""

import errno
import os
from typing import Any

from graders.sandbox.protocol import MAX_DETAIL_CHARS

_REMEDIES = {
    errno.EMFILE: "use fewer workers, or raise the limit on open files (ulimit -n)",
    errno.ENFILE: "use fewer workers, or close programs that hold many open files",
    errno.EAGAIN: "use fewer workers, or raise the limit on processes (ulimit -u)",
    errno.ENOMEM: "use fewer workers, or give them more memory",
}


def explain_os_error(error: OSError) -> str:
    """Return the system's message, the file if there is one, and a remedy."""
    message = os.strerror(error.errno) if error.errno else str(error)
    where = f": {error.filename}" if error.filename else ""
    remedy = "check that it exists and is accessible" if error.filename else "run graders doctor"
    return f"{message}{where}; {_REMEDIES.get(error.errno or 0, remedy)}"


def describe(error: BaseException) -> str:
    """Return an exception as one bounded, encodable line, even if its `__str__` fails."""
    try:
        return one_line(f"{type_name(error)}: {error}")
    except BaseException:  # noqa: BLE001  __str__ of a hostile exception is hostile code
        return type_name(error)


def one_line(text: str) -> str:
    """Return a text as one bounded, encodable line."""
    return text[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode().replace("\n", " ")


def type_name(value: Any) -> str:
    """Return the name of a value's type, even if its metaclass overrides `__name__`."""
    return type.__dict__["__name__"].__get__(type(value))
