"""Base of the settings sections, and descriptions of settings."""

from typing import Any

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all sections."""


def doc(text: str, **limits: Any) -> Meta:
    """Return the metadata of a setting: the text that `--help` prints, and the setting's limits."""
    return Meta(description=text, **limits)
