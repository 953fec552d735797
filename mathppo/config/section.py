"""What every section of the settings is made of."""

from typing import Any

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings."""


def doc(text: str, **limits: Any) -> Meta:
    """Give what stands beside a setting's type: the text that `--help` prints, and the setting's limits."""
    return Meta(description=text, **limits)
