"""Shipped recipes: TOML files with settings for a whole run."""

from pathlib import Path

from mathppo.errors import BadSetting

FOLDER = Path(__file__).parent


def recipe_path(name: str) -> Path:
    """Return the path of a shipped recipe.

    Raises:
        BadSetting: no recipe has this name.
    """
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.toml")))
        raise BadSetting(f"--config: expected a TOML file or one of the recipes {known}, got {name!r}")
    return path
