"""The public names and signatures."""

import importlib
import inspect
import tomllib

import pytest
from source_tree import PACKAGES, ROOT, name_of, sources

PUBLIC = {
    "graders:grade": "completion reference *grader *question",
    "mathppo.ppo.gae:gae": "token_rewards values completion_mask bootstrap_values *gamma *lam",
    "mathppo.ppo.gae:token_rewards": "outcome completion_mask kl *kl_coef",
    "mathppo.ppo.masked:masked_mean": "x mask *denominator",
    "mathppo.ppo.masked:whiten": "x mask *shift_mean *group",
    "mathppo.ppo.losses:policy_loss": (
        "logprobs old_logprobs advantages loss_mask *clip_low *clip_high *dual_clip *weights *denominator"
    ),
    "mathppo.ppo.losses:value_loss": "values old_values returns loss_mask *clip *denominator",
    "mathppo.ppo.kl:kl_estimate": "logprobs ref_logprobs kind",
    "mathppo.ppo.logprobs:token_logprobs": "logits ids *temperature",
    "mathppo.ppo.logprobs:entropy": "logits *temperature",
}
"""Functions with their parameters in order, keyword-only ones with a star. More may follow if they have defaults."""

MODULES = [name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in sources()]


@pytest.mark.parametrize("function", PUBLIC)
def test_function_has_its_public_parameters(function: str) -> None:
    where, _, name = function.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(where), name)).parameters.values()
    found = [("*" if p.kind is p.KEYWORD_ONLY else "") + p.name for p in parameters]
    expected = PUBLIC[function].split()
    assert [p for p in found if p in expected] == expected
    assert all(p.default is not p.empty for p in parameters if p.name not in PUBLIC[function].replace("*", "").split())


def test_graders_exports_its_five_names() -> None:
    graders = importlib.import_module("graders")
    assert {"grade", "GraderPool", "Verdict", "Status", "register"} <= set(graders.__all__)
    assert {s.value for s in graders.Status} == {
        *("correct", "incorrect", "no_answer", "unparsable", "over_budget", "error"),
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_names_in_all_exist(package: str) -> None:
    for name in MODULES:
        if name.partition(".")[0] == package and not name.endswith("__main__"):
            module = importlib.import_module(name)
            missing = [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)]
            assert not missing, f"{name}.__all__ names {missing}, which do not exist"


def test_console_scripts_are_functions() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert set(scripts) == {"mathppo", "graders"}
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
