"""Diagnostics: error texts for exceptions of untrusted code and for operating-system resource limits."""

import errno
import os
from typing import Any

from graders.sandbox.protocol import MAX_DETAIL_CHARS

_REMEDIES = {
    errno.EMFILE: "use fewer workers, or raise the limit on open files (ulimit -n)",
    errno.ENFILE: "use fewer workers, or close what holds files open on this machine",
    errno.EAGAIN: "use fewer workers, or raise the limit on processes (ulimit -u)",
    errno.ENOMEM: "use fewer workers, or give them more memory",
}


def shortage(error: OSError) -> str:
    """Give what the system said, of which file if any, and the remedy."""
    said = os.strerror(error.errno) if error.errno else str(error)
    where = f": {error.filename}" if error.filename else ""
    remedy = "check that it is there and may be used" if error.filename else "run graders doctor"
    return f"{said}{where}; {_REMEDIES.get(error.errno or 0, remedy)}"


def describe(error: BaseException) -> str:
    """Give an exception as one bounded, encodable line, even if its own `__str__` fails."""
    try:
        return one_line(f"{kind_of(error)}: {error}")
    except BaseException:  # noqa: BLE001  the text of a hostile exception is hostile code
        return kind_of(error)


def one_line(text: str) -> str:
    """Give a text as one bounded, encodable line."""
    return text[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode().replace("\n", " ")


def kind_of(thing: Any) -> str:
    """Give the name of a thing's type, even where the type's own type would lie about it."""
    return type.__dict__["__name__"].__get__(type(thing))
