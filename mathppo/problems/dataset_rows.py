"""Row reader: files, folders and hub data sets.

`datasets` is slow to import, so it is imported only for Parquet, Arrow, folders and the hub.
"""

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from mathppo.errors import BadInput

Row = Mapping[str, Any]

HUB_TIMEOUT_S = 10.0
"""Timeout of the request to the hub for the existence of a data set."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def read_rows(source: str, split: str, subset: str | None) -> Iterator[tuple[str, Row]]:
    """Yield the location and the content of each row of a source.

    Args:
        source: a `.jsonl`, `.json` (a list of objects, or lines), `.csv` (every field is text), `.parquet` or `.arrow`
            file; a folder that `datasets` reads or wrote with `save_to_disk`; or a hub id, `owner/name`.
        split: split of a folder or hub id.
        subset: subset of a folder or hub id; None for its only or default subset.

    Raises:
        BadInput: the source is missing or unreadable.
    """
    path = Path(source)
    if not source.strip() or "\0" in source:
        raise BadInput(f"problem source: expected the name of a file, folder or hub id, got {source!r}; set a source")
    if path.suffix in _READERS and not path.is_dir():
        if not path.is_file():
            raise BadInput(f"{source}: expected a file, got nothing there; check the path")
        return _READERS[path.suffix](path)
    if path.is_dir() or (_HUB_ID.fullmatch(source) and not path.exists()):
        return _set_rows(source, split, subset)
    raise BadInput(
        f"{source}: expected a {', '.join(_READERS)} file, a folder, a hub id owner/name, or held_out:NAME; "
        "check the name or convert the file"
    )


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path} line {number}"
                yield where, _object(_decoded(line, where), where)


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if not content.lstrip().startswith(b"["):
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(_decoded(content, str(path)), start=1):
        yield f"{path} item {number}", _object(row, f"{path} item {number}")


def _decoded(content: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))  # Windows editors write it
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: expected one JSON object, got invalid JSON ({error}); fix the line") from error


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise BadInput(f"{where}: expected one JSON object, got {type(row).__name__}; fix the line")
    return row


def _csv_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield rows with fields as text: `025` and `1/2` are not converted to numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            for row in reader:
                yield f"{path} line {reader.line_num}", {name: text for name, text in row.items() if text}
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: expected comma-separated text in UTF-8, got {_one_line(error)}; fix it") from error


def _table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    kind = path.suffix.removeprefix(".")
    try:
        table = load_dataset(kind, data_files=str(path), split="train", streaming=True)
        for number, row in enumerate(table, start=1):
            yield f"{path} row {number}", dict(row)
    except (OSError, ValueError, DatasetsError) as error:
        raise BadInput(
            f"{path}: expected a readable {kind.title()} file, got {type(error).__name__}: {_one_line(error)}; "
            "write it again"
        ) from error


def _set_rows(source: str, split: str, subset: str | None) -> Iterator[tuple[str, Row]]:
    from datasets import load_dataset, load_from_disk
    from datasets.exceptions import DatasetsError

    folder = Path(source)
    saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if not folder.is_dir():
        _require_on_hub(source)
    try:
        table = load_from_disk(source) if saved else load_dataset(source, subset, split=split)
        # A data set that was saved without splits has no split names.
        table = table[split] if isinstance(table, dict) else table
    except (OSError, ValueError, KeyError, DatasetsError) as error:
        raise BadInput(
            f"{source}: expected a data set with split {split!r} and subset {subset!r}, got {type(error).__name__}: "
            f"{_one_line(error)}; check the name, split and subset, and the network"
        ) from error
    for number, row in enumerate(table, start=1):
        yield f"{source} {split} row {number}", dict(row)


def _require_on_hub(source: str) -> None:
    """Request the data set's entry from the hub once; `datasets` would retry for half a minute after any failure.

    Raises:
        BadInput: the data set does not exist, or the hub does not respond.
    """
    from datasets import config
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if config.HF_HUB_OFFLINE or constants.HF_HUB_OFFLINE:
        return  # `datasets` uses its cache or fails at once
    # Exceptions of the HTTP client, which differs between versions of huggingface_hub.
    client_errors: tuple[Any, ...] = (ValueError, *HfHubHTTPError.__bases__)
    try:
        HfApi(endpoint=config.HF_ENDPOINT).dataset_info(source, timeout=HUB_TIMEOUT_S)
    except RepositoryNotFoundError as error:
        raise BadInput(
            f"{source}: expected a data set on the hub, found none with this name; check the spelling, and log in if "
            "it is private"
        ) from error
    except client_errors as error:
        raise BadInput(
            f"{source}: expected a response from the hub, got {type(error).__name__}: {_one_line(error)}; check the "
            "network, set HF_HUB_OFFLINE=1 to use the local cache, or use a file"
        ) from error


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Row]]]] = MappingProxyType(
    {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows, ".parquet": _table_rows, ".arrow": _table_rows}
)


def _one_line(error: Exception, limit: int = 200) -> str:
    return " ".join(str(error).split())[:limit]
