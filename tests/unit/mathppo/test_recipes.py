"""Every shipped recipe is a configuration, and an unknown name is answered with those there are."""

from pathlib import Path

import pytest
import torch

from mathppo.cli import main
from mathppo.config import load_config
from mathppo.errors import BadSetting
from mathppo.pipeline.preflight import check_start
from mathppo.recipes import FOLDER, recipe_path


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_a_recipe_loads_and_leaves_room_for_prompts(name: str) -> None:
    generator = load_config(recipe_path(name)).generator
    assert generator.context_tokens == 0 or generator.context_tokens > generator.max_new_tokens


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_the_command_line_finds_a_recipe_by_its_name(name: str, tmp_path: Path) -> None:
    settings = ["--problems.source=equations", "--problems.held_out=linear", "--problems.count=1"]
    assert main(["prepare", "--config", name, *settings, "--out", str(tmp_path)]) == 0


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"one of the recipes pretrained_cpu, quickstart, .* got 'nothing'"):
        recipe_path("nothing")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("name", ["qwen_0.5b_gsm8k", "qwen_1.5b_math"])
def test_a_recipe_for_a_gpu_says_so_at_once_where_there_is_none(name: str) -> None:
    with pytest.raises(BadSetting, match=r"learner\.device: expected .* if torch finds no GPU, got \"cuda\""):
        check_start(load_config(recipe_path(name)))
