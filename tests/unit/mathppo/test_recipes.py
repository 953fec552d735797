"""Every shipped recipe is a configuration, and an unknown name is answered with those there are."""

import pytest

from mathppo.config import load_config
from mathppo.errors import BadSetting
from mathppo.recipes import FOLDER, recipe_path


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_a_recipe_loads_and_leaves_room_for_prompts(name: str) -> None:
    generator = load_config(recipe_path(name)).generator
    assert generator.context_tokens == 0 or generator.context_tokens > generator.max_new_tokens


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"one of the recipes pretrained_cpu, quickstart, .* got 'nothing'"):
        recipe_path("nothing")
