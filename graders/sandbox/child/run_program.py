"""Program runner: runs a program written by a model, in a worker that is already sandboxed."""

import builtins
import io
import os
import sys
from typing import IO, Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_OUTPUT_BYTES = 32 << 10
"""Limit on the output of a program for all its inputs together."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a program on one input."""

    end: Literal["finished", "raised", "output limit"]
    printed: Annotated[str, Meta(max_length=MAX_OUTPUT_BYTES)]
    failure: Annotated[str, Meta(max_length=200)]


class _OutputLimitError(BaseException):
    """A program exceeded its output limit. Not an Exception, because programs often catch those."""


class _Output(io.BytesIO):
    """Collects the output, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def close(self) -> None:
        """Do nothing: the output must stay readable after a program closes it."""

    def write(self, printed: Any) -> int:
        if self.tell() + len(printed) > self._limit:
            raise _OutputLimitError
        return super().write(printed)


def run_program(program: str, text: str, max_output_bytes: int) -> Run:
    """Run the source code of a program with `text` as its standard input, and a limit on its standard output."""
    collected = _Output(max_output_bytes)
    output = io.TextIOWrapper(collected, "utf-8", "replace", write_through=True)
    source = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
    streams = sys.stdin, sys.stdout
    names = builtins.__dict__
    original_names = names.copy()  # restored for the worker's code
    sys.stdin, sys.stdout = source, output
    end, failure = "finished", ""
    try:
        scope = {"__name__": "__main__", "open": _opener(source)}
        exec(compile(program, "<completion>", "exec"), scope)
    except (SystemExit, KeyboardInterrupt):
        pass
    except MemoryError:
        raise
    except _OutputLimitError:
        end = "output limit"
    except BaseException as error:  # noqa: BLE001  any exception of the program is its result
        end, failure = "raised", f"{type(error).__name__}: {_text_of(error)}"[:200]
    finally:
        names.update(original_names)
        sys.stdin, sys.stdout = streams
    printed = collected.getvalue().decode("utf-8", "replace")[:max_output_bytes]
    return Run(end, printed, failure.encode("utf-8", "replace").decode())


def _text_of(error: BaseException) -> str:
    """Return the message of an exception, or nothing if its `__str__`, which is the program's code, fails."""
    try:
        return str(error)
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001  raised by code of the program
        return ""


def _opener(source: IO[str]) -> Any:
    """Return an `open` for which descriptor 0, which contest programs use, is the standard input."""

    def opened(file: Any, *arguments: Any, **settings: Any) -> Any:
        return source if file == 0 else builtins.open(file, *arguments, **settings)

    return opened


def is_locked() -> bool:
    """Return True if the system call filter is active: nothing else makes this call fail with EACCES."""
    try:
        os.getcwd()
    except PermissionError:
        return True
    except OSError:
        return False
    return False
