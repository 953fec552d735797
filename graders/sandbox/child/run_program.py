"""Runs a program that a model wrote, in a worker that is locked already."""

import builtins
import io
import os
import sys
from typing import IO, Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_OUTPUT_BYTES = 32 << 10
"""For all inputs of a program together."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program did with one input."""

    end: Literal["finished", "raised", "output limit"]
    printed: Annotated[str, Meta(max_length=MAX_OUTPUT_BYTES)]
    failure: Annotated[str, Meta(max_length=200)]


class _OutputLimitError(BaseException):
    """A program printed more than it may; not an Exception, so that it cannot be caught by accident."""


class _Output(io.BytesIO):
    """Collects what is printed, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def close(self) -> None:
        """Stay readable: a program may close its standard output."""

    def write(self, printed: Any) -> int:
        if self.tell() + len(printed) > self._limit:
            raise _OutputLimitError
        return super().write(printed)


def run_program(program: str, text: str, max_output_bytes: int) -> Run:
    """Run a program with standard input and output of its own."""
    collected = _Output(max_output_bytes)
    output = io.TextIOWrapper(collected, "utf-8", "replace", write_through=True)
    source = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
    streams = sys.stdin, sys.stdout
    names = builtins.__dict__
    kept = names.copy()  # the worker's own code needs them again
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
    except BaseException as error:  # noqa: BLE001  a program in a worker: whatever it raises is its result
        end, failure = "raised", f"{type(error).__name__}: {_text_of(error)}"[:200]
    finally:
        names.update(kept)
        sys.stdin, sys.stdout = streams
    printed = collected.getvalue().decode("utf-8", "replace")[:max_output_bytes]
    return Run(end, printed, failure.encode("utf-8", "replace").decode())


def _text_of(error: BaseException) -> str:
    """What an exception of the program says; nothing where it cannot say it, for its methods are the program's too."""
    try:
        return str(error)
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001  the same
        return ""


def _opener(source: IO[str]) -> Any:
    """Give an `open` for which descriptor 0, as programs in contests use it, is the test's input."""

    def opened(file: Any, *arguments: Any, **settings: Any) -> Any:
        return source if file == 0 else builtins.open(file, *arguments, **settings)

    return opened


def is_locked() -> bool:
    """Whether the filter of system calls is on this process: nothing else makes this call fail in this way."""
    try:
        os.getcwd()
    except PermissionError:
        return True
    except OSError:
        return False
    return False
