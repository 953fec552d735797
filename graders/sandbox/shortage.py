"""What a system that has run out of something says, and what a person can do about it.

Touches: nothing.
"""

import errno
import os

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
