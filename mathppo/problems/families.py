"""The built-in families by name."""

from mathppo.errors import BadSetting
from mathppo.problems.arithmetic import ARITHMETIC
from mathppo.problems.degenerate import DEGENERATE
from mathppo.problems.facts import FACTS
from mathppo.problems.family import Family
from mathppo.problems.linear import LINEAR
from mathppo.problems.quadratic import QUADRATIC
from mathppo.problems.simplify import SIMPLIFY
from mathppo.problems.system import SYSTEM

FAMILIES: tuple[Family, ...] = (LINEAR, DEGENERATE, SYSTEM, QUADRATIC, SIMPLIFY, ARITHMETIC, FACTS)


def family_named(name: str) -> Family:
    """The family of that name.

    Raises:
        BadSetting: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise BadSetting(f"family: expected one of {', '.join(family.name for family in FAMILIES)}, got {name!r}")
