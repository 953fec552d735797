"""The conformance kit passes the functions of mathppo.ppo and detects the faults that it lists."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mathppo import conformance
from mathppo.conformance import KINDS
from mathppo.errors import BadInput
from mathppo.ppo.gae import gae
from mathppo.ppo.kl import kl_estimate
from mathppo.ppo.losses import policy_loss, value_loss
from mathppo.ppo.masked import masked_mean, whiten

OWN = {
    "gae": "mathppo.ppo.gae:gae",
    "policy_loss": "mathppo.ppo.losses:policy_loss",
    "value_loss": "mathppo.ppo.losses:value_loss",
    "whiten": "mathppo.ppo.masked:whiten",
    "masked_mean": "mathppo.ppo.masked:masked_mean",
    "kl": "mathppo.ppo.kl:kl_estimate",
}


@pytest.mark.parametrize("kind", KINDS)
def test_own_implementation_passes_every_row(kind: str):
    rows = conformance.run(kind, OWN[kind])
    assert [row for row in rows if not row.passed] == []
    assert len({row.name for row in rows}) == len(rows) >= 4
    assert all(row.issue and row.detail for row in rows)


def gae_with_reward_on_the_pad(r: Tensor, v: Tensor, mask: Tensor, b: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Read the value after the last token, as if the episode continued there."""
    after = mask | torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return gae(torch.nn.functional.pad(r, (1, 0))[:, :-1], v, after, b, gamma=gamma, lam=lam)


def gae_through_tool_text(r: Tensor, v: Tensor, mask: Tensor, b: Tensor, *, gamma: float, lam: float) -> Tensor:
    return gae(r, v, torch.ones_like(mask), b, gamma=gamma, lam=lam)


def gae_without_bootstrap(r: Tensor, v: Tensor, mask: Tensor, b: Tensor, *, gamma: float, lam: float) -> Tensor:
    return gae(r, v, mask, torch.zeros_like(b), gamma=gamma, lam=lam)


def gae_with_lambda_for_gamma(r: Tensor, v: Tensor, mask: Tensor, b: Tensor, *, gamma: float, lam: float) -> Tensor:
    return gae(r, v, mask, b, gamma=lam, lam=gamma)


def policy_loss_with_max(new: Tensor, old: Tensor, a: Tensor, mask: Tensor, **options: float) -> Tensor:
    """Take the optimistic bound: the maximum of the objectives, which is the minimum of the losses."""
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - options["clip_low"], 1 + options["clip_high"])
    return masked_mean(torch.minimum(-ratio * a, -clipped * a), mask, denominator=options.get("denominator"))


def policy_loss_mean_of_means(
    new: Tensor, old: Tensor, a: Tensor, mask: Tensor, *, clip_low: float, clip_high: float, **_: float
) -> Tensor:
    return policy_loss(new, old, a, mask, clip_low=clip_low, clip_high=clip_high)[0]


def policy_loss_times_mask(new: Tensor, old: Tensor, a: Tensor, mask: Tensor, **options: float) -> Tensor:
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - options["clip_low"], 1 + options["clip_high"])
    per_token = torch.maximum(-ratio * a, -clipped * a) * mask
    return per_token.sum() / options.get("denominator", mask.sum())


def value_loss_with_min(v: Tensor, old: Tensor, target: Tensor, mask: Tensor, **options: float) -> Tensor:
    near = old + (v - old).clamp(-options.get("clip", 9.0), options.get("clip", 9.0))
    errors = torch.minimum((v - target).square(), (near - target).square())
    return masked_mean(errors, mask, denominator=options.get("denominator"))


def value_loss_unscaled(v: Tensor, old: Tensor, target: Tensor, mask: Tensor, **options: float) -> Tensor:
    return 2 * value_loss(v, old, target, mask, **options)[0]


def whiten_over_everything(x: Tensor, mask: Tensor, **options: Tensor) -> Tensor:
    return whiten(x, torch.ones_like(mask), **options)  # pyright: ignore[reportArgumentType]


def whiten_with_flag_flipped(
    x: Tensor, mask: Tensor, *, shift_mean: bool = True, group: Tensor | None = None
) -> Tensor:
    return whiten(x, mask, shift_mean=not shift_mean, group=group)


def unbiased_whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True, group: Tensor | None = None) -> Tensor:
    n = mask.sum().clamp(min=2)
    whitened = whiten(x, mask, group=group) * ((n - 1) / n).sqrt()
    return whitened if shift_mean else whitened + masked_mean(x, mask)


def mean_over_all(x: Tensor, mask: Tensor, *, denominator: float | None = None) -> Tensor:
    return (x * mask).sum() / (denominator or x.numel())


def kl_with_wrong_sign(logprobs: Tensor, ref: Tensor, kind: str) -> Tensor:
    return kl_estimate(ref, logprobs, kind)


@pytest.mark.parametrize(
    ("kind", "function", "caught"),
    [
        ("gae", gae_with_reward_on_the_pad, "the reward is on the last sampled token"),
        ("gae", gae_through_tool_text, "tool text is not a step"),
        ("gae", gae_without_bootstrap, "a truncated completion bootstraps"),
        ("gae", gae_with_lambda_for_gamma, "gamma .9, lambda .8"),
        ("policy_loss", policy_loss_with_max, "ratio 1.5, advantage 1: loss -1.2"),
        ("policy_loss", policy_loss_mean_of_means, "gradient accumulation is exact"),
        ("policy_loss", policy_loss_times_mask, "an empty mask gives 0"),
        ("policy_loss", policy_loss_times_mask, "masked positions are ignored"),
        ("policy_loss", policy_loss_times_mask, "a very large ratio has a finite gradient"),
        ("policy_loss", policy_loss_times_mask, "ratio 10, advantage -1, dual clip 3: loss 3"),
        ("value_loss", value_loss_with_min, "old value 0, value 0.9"),
        ("whiten", whiten_over_everything, "mean and standard deviation of True positions only"),
        ("whiten", whiten_with_flag_flipped, "shift_mean=False keeps the mean"),
        ("masked_mean", mean_over_all, "only True positions count"),
        ("kl", kl_with_wrong_sign, "k1 of log-probabilities"),
        ("kl", kl_with_wrong_sign, "a gradient step on the KL alone reduces it"),
    ],
)
def test_known_fault_fails_its_row(kind: str, function: Callable[..., Tensor], caught: str):
    rows = [row for row in conformance.run(kind, function) if row.name.startswith(caught)]
    assert [row.passed for row in rows] == [False]
    assert "expected" in rows[0].detail


@pytest.mark.parametrize(("kind", "function"), [("value_loss", value_loss_unscaled), ("whiten", unbiased_whiten)])
def test_both_conventions_pass(kind: str, function: Callable[..., Tensor]):
    assert [row for row in conformance.run(kind, function) if not row.passed] == []


def test_exception_fails_only_its_rows():
    def broken(x: Tensor, mask: Tensor, **options: float) -> Tensor:
        if "denominator" in options:
            raise ValueError("no such option\nsecond line")
        return masked_mean(x, mask)

    failed = [row for row in conformance.run("masked_mean", broken) if not row.passed]
    assert [row.detail for row in failed] == ["expected a result, got ValueError: no such option"]


def test_wrong_shape_is_reported():
    rows = conformance.run("masked_mean", lambda x, mask, **options: x)
    assert rows[0].detail == "expected shape [], got [1, 4]"


def test_implementation_is_loaded_from_a_file(tmp_path: Path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text("from mathppo.ppo.masked import masked_mean as mean\n", "utf-8")
    assert all(row.passed for row in conformance.run("masked_mean", f"{adapter}:mean"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mathppo.ppo.masked", "expected 'package.module:function'"),
        ("no_such_module:f", "got ModuleNotFoundError: No module named 'no_such_module'"),
        ("mathppo.ppo.masked:nothing", "got AttributeError"),
        ("missing.py:f", "got FileNotFoundError"),
        ("mathppo.ppo.masked:WHITEN_EPS", "expected a function at 'mathppo.ppo.masked:WHITEN_EPS', got float"),
    ],
)
def test_specification_without_a_function_is_rejected(spec: str, message: str):
    with pytest.raises(BadInput, match=message):
        conformance.run("masked_mean", spec)


def test_unknown_kind_is_rejected():
    with pytest.raises(
        BadInput, match="expected a kind among gae, policy_loss, value_loss, whiten, masked_mean, kl, got 'vtrace'"
    ):
        conformance.run("vtrace", masked_mean)
