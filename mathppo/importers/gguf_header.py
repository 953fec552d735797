"""The head of a GGUF file, read with bounds: what it claims to hold must fit what it is.

A file comes from anywhere. One that was cut short, or that claims a million layers, is refused here, before a library
takes memory by what it says. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import importlib
import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from mathppo.errors import BadInput

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4

STRING, ARRAY = 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Codes of value types, as `struct` reads them."""


class Layout(NamedTuple):
    """What a file says of itself.

    Args:
        metadata: single values by key.
        lengths: of the lists by key.
        shapes: of the tensors by name, the fastest dimension first, as the file has them.
    """

    metadata: dict[str, Any]
    lengths: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


def check_gguf(path: Path) -> None:
    """See that a file is whole, and that model and tensors are of one size.

    Raises:
        BadInput: it is of another kind, cut short or damaged, or its sizes contradict each other.
    """
    metadata, lengths, shapes = read_layout(path)
    kind = metadata.get("general.architecture")
    embeddings = shapes.get("token_embd.weight")
    if not isinstance(kind, str) or embeddings is None or len(embeddings) != 2:
        raise BadInput(
            f"{path}: expected a GGUF file of a language model, found no architecture or no token embeddings in it; "
            "give another file"
        )
    blocks = {int(match.group(1)) for name in shapes if (match := re.match(r"blk\.(\d{1,9})\.", name))}
    feed_forward = shapes.get("blk.0.ffn_up.weight", (0, metadata.get(f"{kind}.feed_forward_length")))
    for key, found in (
        (f"{kind}.block_count", len(blocks)),
        (f"{kind}.embedding_length", embeddings[0]),
        (f"{kind}.feed_forward_length", feed_forward[-1]),
        (f"{kind}.vocab_size", embeddings[1]),
    ):
        if metadata.get(key, found) != found:
            raise BadInput(
                f"{path}: expected {key} to be {found}, as the file's tensors have it, got {metadata[key]}; the file "
                "is damaged, get it again"
            )
    num_words = lengths.get("tokenizer.ggml.tokens")
    if num_words != embeddings[1]:
        raise BadInput(
            f"{path}: expected a tokenizer of {embeddings[1]} tokens, as many as have embeddings, got {num_words}; "
            "give a file that has one"
        )


def read_layout(path: Path) -> Layout:
    """Read metadata and the list of tensors.

    Raises:
        BadInput: as `check_gguf`, but for sizes that contradict each other.
    """
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise BadInput(
                f"{path}: expected a GGUF file, which begins with {MAGIC!r}, got {magic!r}; give another file"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _read(_Cursor(path, content))


class _Cursor:
    """Reads on and never past the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self._content, self.at = path, content, len(MAGIC)

    @property
    def left(self) -> int:
        return len(self._content) - self.at

    def refuse(self, what: str) -> BadInput:
        return BadInput(f"{self.path}: {what} at byte {self.at}; the file is damaged, get it again")

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise BadInput(
                f"{self.path}: expected {size} bytes more at byte {self.at}, got {self.left}; the file was cut short "
                "or is damaged, get it again"
            )
        self.at += size
        return self._content[self.at - size : self.at]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def count(self, least_bytes: int) -> int:
        """Read how many things follow, of so many bytes each or more."""
        count = self.number("<Q")
        if count * least_bytes > self.left:
            raise self.refuse(
                f"expected things that fit into the {self.left} bytes left, got {count} of them announced"
            )
        return count

    def text(self) -> str:
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError:
            raise self.refuse("expected text in UTF-8, got other bytes") from None

    def value(self, kind: int) -> Any:
        """Read a single value."""
        return self.text() if kind == STRING else self.number(self._scalar(kind))

    def skip_list(self) -> int:
        """Pass over a list; give its length."""
        kind = self.number("<I")
        if kind == STRING:
            count = self.count(8)
            for _ in range(count):
                self.take(self.count(1))
            return count
        size = struct.calcsize(self._scalar(kind))
        count = self.count(size)
        self.take(count * size)
        return count

    def _scalar(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self.refuse(f"expected a known type of value, got {kind}")
        return SCALARS[kind]


def _read(cursor: _Cursor) -> Layout:
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise cursor.refuse(f"expected version {' or '.join(map(str, VERSIONS))} of GGUF, got {version}")
    num_tensors = cursor.count(24)
    metadata, lengths = {}, {}
    for _ in range(cursor.count(13)):
        key, kind = cursor.text(), cursor.number("<I")
        if kind == ARRAY:
            lengths[key] = cursor.skip_list()
        else:
            metadata[key] = cursor.value(kind)
    shapes, end = {}, 0
    for _ in range(num_tensors):
        name, num_dims = cursor.text(), cursor.number("<I")
        if num_dims > MAX_DIMS:
            raise cursor.refuse(f"tensor {name!r}: expected at most {MAX_DIMS} dimensions, got {num_dims}")
        shapes[name] = tuple(cursor.number("<Q") for _ in range(num_dims))
        size = _size(cursor, name, math.prod(shapes[name]), cursor.number("<I"))
        end = max(end, cursor.number("<Q") + size)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.refuse(f"expected general.alignment of 1 or more, got {alignment!r}")
    padding = -cursor.at % alignment
    if padding + end > cursor.left:
        raise BadInput(
            f"{cursor.path}: expected {padding + end} bytes of tensors, got {cursor.left}; the file was cut short, get "
            "it again"
        )
    return Layout(metadata, lengths, shapes)


def _size(cursor: _Cursor, name: str, numbers: int, kind: int) -> int:
    """Give the bytes of a tensor."""
    sizes: dict[int, tuple[int, int]] = importlib.import_module("gguf.constants").GGML_QUANT_SIZES
    if kind not in sizes:
        raise cursor.refuse(f"tensor {name!r}: expected a known quantisation, got type {kind}")
    block, size = sizes[kind]
    return math.ceil(numbers / block) * size
