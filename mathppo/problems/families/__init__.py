"""Built-in problem families, by name."""

from mathppo.errors import BadSetting
from mathppo.problems.families.arithmetic import ARITHMETIC
from mathppo.problems.families.degenerate import DEGENERATE
from mathppo.problems.families.facts import FACTS
from mathppo.problems.families.family import Family
from mathppo.problems.families.linear import LINEAR
from mathppo.problems.families.quadratic import QUADRATIC
from mathppo.problems.families.simplify import SIMPLIFY
from mathppo.problems.families.system import SYSTEM

FAMILIES: tuple[Family, ...] = (LINEAR, DEGENERATE, SYSTEM, QUADRATIC, SIMPLIFY, ARITHMETIC, FACTS)


def family_named(name: str) -> Family:
    """Return the family of that name.

    Raises:
        BadSetting: there is no such family.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise BadSetting(f"family: expected one of {', '.join(family.name for family in FAMILIES)}, got {name!r}")
