"""Settings as text: TOML files, dotted overrides, and messages for what is wrong in them."""

import difflib
import math
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mathppo.errors import BadSetting


def read_toml(path: Path) -> dict[str, Any]:
    """Give the settings of a TOML file.

    Raises:
        BadSetting: it is missing or no TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadSetting(f"--config: expected a TOML file, found nothing at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"--config: expected a TOML file at {path}, got: {error}") from None


def read_value(text: str) -> Any:
    """Give what the text of an override means as TOML; as a string where it is none."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key.

    Raises:
        BadSetting: the key is not of the form `section.name`.
    """
    section, _, name = key.partition(".")
    body = tree.setdefault(section, {})
    if not name or not isinstance(body, dict):
        raise BadSetting(f"--{key}: expected a setting as --section.name=value, for instance --learner.lr=1e-6")
    body[name] = value


def check_keys(tree: Mapping[str, Any], config: type) -> None:
    """Refuse a key that no setting has, and a number that is not finite, which no setting means.

    Raises:
        BadSetting: an unknown section or setting; the message names the closest one. Or infinity, or not a number.
    """
    sections = {field.name: field.type for field in msgspec.structs.fields(config)}
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in msgspec.structs.fields(kind)}
    for section, body in tree.items():
        if not isinstance(body, Mapping):
            raise BadSetting(f"{section}: expected a section with settings of its own, got {body!r}")
        for name in body or {"": None}:
            key = f"{section}.{name}"
            if section in sections and (name == "" or key in known):
                value = body.get(name)
                if isinstance(value, float) and not math.isfinite(value):
                    raise BadSetting(f"{key}: expected a finite number, got {value}")
                continue
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; sections are {', '.join(sections)}"
            raise BadSetting(f"{key.rstrip('.')}: unknown setting{hint}")


def explain(error: msgspec.ValidationError, tree: Mapping[str, Any], config: type) -> str:
    """Say with path, value and what is allowed why settings were refused."""
    reason, _, where = str(error).partition(" - at ")
    keys = re.findall(r"\.(\w+)", where)
    value: Any = tree
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else value
    path = ".".join(keys) or "configuration"
    reason = reason[0].lower() + reason[1:].replace("`", "")
    if reason.startswith("invalid enum value"):
        reason = f"expected one of {', '.join(map(repr, _choices(keys, config)))}"
    return f"{path}: {reason}" + ("" if ", got" in reason else f", got {value!r}")


def _choices(keys: Sequence[str], config: type) -> tuple[str, ...]:
    kind: Any = config
    for key in keys:
        kind = next(field.type for field in msgspec.structs.fields(kind) if field.name == key)
    return typing.get_args(typing.get_args(kind)[0])
