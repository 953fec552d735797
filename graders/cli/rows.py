"""Rows of JSONL files as typed structs."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from graders.errors import BadInput

R = TypeVar("R", bound=msgspec.Struct)


def read_rows(path: Path, kind: type[R]) -> Iterator[R]:
    """Yield the rows of a file one at a time; blank lines and a byte-order mark are skipped.

    Raises:
        BadInput: the file cannot be read, or a line is not of this kind; names the line.
    """
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007  used by the error below
                if line.strip():
                    yield decoder.decode(line.removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise BadInput(f"{path}: expected a readable file, got {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} line {number}: expected {', '.join(kind.__struct_fields__)}, got: {error}") from error
