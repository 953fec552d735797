"""Shipped recipes load, and the error for an unknown recipe lists the known ones."""

from pathlib import Path

import pytest
import torch

from mathppo.cli import main
from mathppo.config import load_config
from mathppo.errors import BadSetting
from mathppo.pipeline.preflight import check_start
from mathppo.recipes import FOLDER, recipe_path


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_a_recipe_loads_and_its_context_exceeds_the_token_budget(name: str) -> None:
    generator = load_config(recipe_path(name)).generator
    assert generator.context_tokens == 0 or generator.context_tokens > generator.max_new_tokens


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_the_command_line_finds_a_recipe_by_name(name: str, tmp_path: Path) -> None:
    settings = ["--problems.source=equations", "--problems.held_out=linear", "--problems.count=1"]
    assert main(["prepare", "--config", name, *settings, "--out", str(tmp_path)]) == 0


def test_the_error_for_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"one of the recipes pretrained_cpu, quickstart, .* got 'nothing'"):
        recipe_path("nothing")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("name", ["qwen_0.5b_gsm8k", "qwen_1.5b_math"])
def test_a_gpu_recipe_fails_at_once_without_a_gpu(name: str) -> None:
    with pytest.raises(BadSetting, match=r"learner\.device: expected .* if torch finds no GPU, got \"cuda\""):
        check_start(load_config(recipe_path(name)))
