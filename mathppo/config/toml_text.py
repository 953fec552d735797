"""Settings as text: TOML files, dotted overrides, and messages for invalid ones."""

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
    """Read the settings of a TOML file.

    Raises:
        BadSetting: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadSetting(f"--config: expected a TOML file, found nothing at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"--config: expected a TOML file at {path}, got: {error}") from None


def read_value(text: str) -> Any:
    """Parse the value of an override as TOML; return the text itself if it is not TOML."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key.

    Raises:
        BadSetting: the key is not of the form `section.name`.
    """
    section, _, name = key.partition(".")
    body = tree.setdefault(section, {})
    if not name or not isinstance(body, dict):
        raise BadSetting(f"--{key}: expected a setting as --section.name=value, for example --learner.lr=1e-6")
    body[name] = value


def check_keys(tree: Mapping[str, Any], config: type) -> None:
    """Reject unknown keys and numbers that are not finite.

    Raises:
        BadSetting: a section or setting is unknown (the message names the closest one), or a number is not finite.
    """
    sections = {field.name: field.type for field in msgspec.structs.fields(config)}
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in msgspec.structs.fields(kind)}
    for section, body in tree.items():
        if not isinstance(body, Mapping):
            raise BadSetting(f"{section}: expected a section of settings, got {body!r}")
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
    """Return a message with the path, the value and the allowed values of a rejected setting."""
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
