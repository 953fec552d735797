"""The built-in families by name.

Touches: nothing.
"""

from mathppo.errors import BadSetting
from mathppo.problems.family import Family
from mathppo.problems.linear import LINEAR

FAMILIES: tuple[Family, ...] = (LINEAR,)


def family_named(name: str) -> Family:
    """The family of that name.

    Raises:
        BadSetting: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise BadSetting(f"family: expected one of {', '.join(family.name for family in FAMILIES)}, got {name!r}")
