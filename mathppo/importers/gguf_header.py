"""GGUF header check: every size that the file claims must fit the file.

GGUF files come from untrusted sources. A truncated file, or one that claims a million layers, is rejected here, before
memory is allocated for it; the reader of the `gguf` package trusts the claimed counts and loops over them.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
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
"""`struct` format of each scalar type code."""


class Header(NamedTuple):
    """Contents of a GGUF header.

    Args:
        metadata: scalar values by key.
        lengths: list lengths by key.
        shapes: tensor shapes by name, fastest dimension first, as stored in the file.
    """

    metadata: dict[str, Any]
    lengths: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


def check_gguf(path: Path) -> None:
    """Check that a file is complete and that its metadata agrees with its tensors.

    Raises:
        BadInput: the file is not GGUF, truncated or damaged, or its sizes contradict each other.
    """
    metadata, lengths, shapes = read_header(path)
    kind = metadata.get("general.architecture")
    embeddings = shapes.get("token_embd.weight")
    if not isinstance(kind, str) or embeddings is None or len(embeddings) != 2:
        raise BadInput(
            f"{path}: expected a GGUF file of a language model, found no architecture or no token embeddings; pass "
            "another file"
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
                f"{path}: expected {key} to be {found}, as in the file's tensors, got {metadata[key]}; the file is "
                "damaged: download it again"
            )
    num_words = lengths.get("tokenizer.ggml.tokens")
    if num_words != embeddings[1]:
        raise BadInput(
            f"{path}: expected a tokenizer of {embeddings[1]} tokens, one per embedding, got {num_words}; pass a "
            "file with a complete tokenizer"
        )


def read_header(path: Path) -> Header:
    """Read the metadata and the list of tensors.

    Raises:
        BadInput: the file is not GGUF, truncated or damaged.
    """
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise BadInput(
                f"{path}: expected a GGUF file, which begins with {MAGIC!r}, got {magic!r}; pass another file"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _read(_Cursor(path, content))


class _Cursor:
    """Read position in the file; never reads past the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self._content, self.position = path, content, len(MAGIC)

    @property
    def left(self) -> int:
        return len(self._content) - self.position

    def damaged(self, reason: str) -> BadInput:
        return BadInput(f"{self.path}: {reason} at byte {self.position}; the file is damaged: download it again")

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise BadInput(
                f"{self.path}: expected {size} more bytes at byte {self.position}, got {self.left}; the file is "
                "truncated or damaged: download it again"
            )
        self.position += size
        return self._content[self.position - size : self.position]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def count(self, min_bytes: int) -> int:
        """Read an item count; `min_bytes` is the smallest size of one item."""
        count = self.number("<Q")
        if count * min_bytes > self.left:
            raise self.damaged(f"expected items that fit into the remaining {self.left} bytes, got a count of {count}")
        return count

    def text(self) -> str:
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError:
            raise self.damaged("expected UTF-8 text, got other bytes") from None

    def value(self, kind: int) -> Any:
        """Read one scalar or string."""
        return self.text() if kind == STRING else self.number(self._scalar(kind))

    def skip_list(self) -> int:
        """Skip a list and return its length."""
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
            raise self.damaged(f"expected a known value type, got {kind}")
        return SCALARS[kind]


def _read(cursor: _Cursor) -> Header:
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise cursor.damaged(f"expected GGUF version {' or '.join(map(str, VERSIONS))}, got {version}")
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
            raise cursor.damaged(f"tensor {name!r}: expected at most {MAX_DIMS} dimensions, got {num_dims}")
        shapes[name] = tuple(cursor.number("<Q") for _ in range(num_dims))
        size = _size(cursor, name, math.prod(shapes[name]), cursor.number("<I"))
        end = max(end, cursor.number("<Q") + size)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.damaged(f"expected general.alignment of 1 or more, got {alignment!r}")
    padding = -cursor.position % alignment
    if padding + end > cursor.left:
        raise BadInput(
            f"{cursor.path}: expected {padding + end} bytes of tensors, got {cursor.left}; the file is truncated: "
            "download it again"
        )
    return Header(metadata, lengths, shapes)


def _size(cursor: _Cursor, name: str, numbers: int, kind: int) -> int:
    """Return the size of a tensor in bytes."""
    sizes: dict[int, tuple[int, int]] = importlib.import_module("gguf.constants").GGML_QUANT_SIZES
    if kind not in sizes:
        raise cursor.damaged(f"tensor {name!r}: expected a known quantisation, got type {kind}")
    block, size = sizes[kind]
    return math.ceil(numbers / block) * size
