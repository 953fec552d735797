"""Committed held-out sets of the built-in families, in the package or, in a checkout, in `data/`."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from mathppo.errors import BadInput, BadSetting
from mathppo.problems.families import FAMILIES
from mathppo.records import Problem

HELD_OUT_COUNTS = {family.name: 2_000 if family.name == "linear" else 300 for family in FAMILIES}
"""Number of problems in each committed set."""


def load_held_out(name: str) -> list[Problem]:
    """Load the held-out problems of a family.

    They are unique by canonical form and share none with a training problem. Any prefix of the list mixes the levels.

    Raises:
        BadSetting: there is no such set.
        BadInput: the file is missing or damaged.
    """
    if name not in HELD_OUT_COUNTS:
        raise BadSetting(f"held-out set: expected one of {', '.join(HELD_OUT_COUNTS)}, got {name!r}")
    return read_held_out(_folder() / f"{name}.jsonl", HELD_OUT_COUNTS[name])


def read_held_out(path: Traversable, count: int) -> list[Problem]:
    """Read the problems of one committed file.

    Raises:
        BadInput: the file is missing, has a line that is not a problem, or does not have `count` problems.
    """
    remedy = "reinstall mathppo, or run scripts/make_data.py in a checkout"
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"held-out set {path}: expected a file, got {type(error).__name__}; {remedy}") from error
    decoder = msgspec.json.Decoder(Problem)
    problems = []
    for number, line in enumerate(lines, start=1):
        try:
            problems.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise BadInput(f"held-out set {path} line {number}: expected a problem, got {error}; {remedy}") from error
    if len(problems) != count:
        raise BadInput(f"held-out set {path}: expected {count} problems, got {len(problems)}; {remedy}")
    return problems


def _folder() -> Traversable:
    """Return `mathppo/held_out` in an installed wheel, `data/held_out` in a checkout."""
    installed = files("mathppo") / "held_out"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "data" / "held_out"
