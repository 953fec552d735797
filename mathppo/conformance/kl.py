"""Checks of the KL estimates."""

import torch

from mathppo.conformance.check import Check, Function, Mismatch, expect, randn

_SIGNS = "verl-project/verl#211, huggingface/trl#3025, #2608, radixark/miles#1383"
_DEFINITION = "Schulman 2020, Approximating KL Divergence"


def _known(kind: str, expected: float) -> Check:
    def examine(function: Function) -> str:
        return expect(function(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), kind), [[expected]])

    return Check(f"{kind} of log-probabilities -1 and -1.5", _SIGNS, examine)


def _step_on_the_kl(function: Function) -> str:
    ref = torch.tensor([-0.3, 0.8, 0.1]).log_softmax(-1)
    for kind in ("k2", "k3"):
        logits = torch.tensor([1.0, -0.5, 0.2], requires_grad=True)
        logprobs = logits.log_softmax(-1)
        # Exact expectation over the three tokens.
        loss = (logprobs.exp().detach() * function(logprobs, ref, kind)).sum()
        moved = (logits - 0.1 * torch.autograd.grad(loss, logits)[0]).log_softmax(-1)
        before, after = ((p.exp() * (p - ref)).sum().item() for p in (logprobs, moved))
        if not after < before:
            raise Mismatch(f"{kind}: expected a KL below {before:.4f} after a step on the KL alone, got {after:.4f}")
    return "k2 and k3 pull towards the reference"


def _unbiased(function: Function) -> str:
    logprobs, ref = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    exact = (logprobs.exp() * (logprobs - ref)).sum()
    for kind in ("k1", "k3"):
        expect((logprobs.exp() * function(logprobs, ref, kind)).sum(), exact, of=f"mean of {kind}")
    return f"k1 and k3 average to {exact.item():.4f}"


def _never_negative(function: Function) -> str:
    logprobs, ref = -randn(0, 1, 1000).abs(), -randn(1, 1, 1000).abs()
    near = ref + 1e-4 * randn(2, 1, 1000)
    for policy, of in ((logprobs, "far"), (near, "near")):
        lowest = min(function(policy, ref, kind).min().item() for kind in ("k2", "k3"))
        # Rounding of exp(x) - 1 - x near 0 may give a small negative number; a wrong sign gives a large one.
        if lowest < -1e-6:
            raise Mismatch(f"{of}: expected k2 and k3 of at least 0, got {lowest:.3g}")
    return "at least 0"


def _equal(function: Function) -> str:
    logprobs = -randn(0, 1, 9).abs()
    for kind in ("k1", "k2", "k3"):
        expect(function(logprobs, logprobs, kind), torch.zeros(1, 9), 1e-6, of=kind)
    return "0 for equal policies"


CHECKS = (
    _known("k1", 0.5),
    _known("k2", 0.125),
    _known("k3", 0.10653),
    Check("a gradient step on the KL alone reduces it", "qiancheng0/ToolRL#52", _step_on_the_kl),
    Check("k1 and k3 are unbiased", _DEFINITION, _unbiased),
    Check("k2 and k3 are never negative", _DEFINITION, _never_negative),
    Check("equal policies have KL 0", _DEFINITION, _equal),
)
