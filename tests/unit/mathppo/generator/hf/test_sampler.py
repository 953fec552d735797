"""Sampler: the sampling distribution and the draw of a token."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mathppo.generator.hf.sampler import draw, sampling_logprobs, uniforms

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12)


def test_temperature_divides_the_logits_not_the_logprobs() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    assert sampling_logprobs(logits, temperature=0.5)[0, 0].item() == pytest.approx(-0.01815, abs=1e-5)
    assert sampling_logprobs(logits, temperature=1.0)[0, 0].item() == pytest.approx(-0.12693, abs=1e-5)
    assert sampling_logprobs(logits, temperature=0.0)[0, 0].item() == pytest.approx(-0.12693, abs=1e-5)


def _plain(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Reference probabilities: rank, keep k, keep the nucleus, renormalise."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k or None]
    weights = {i: math.exp((logits[i] - max(logits)) / temperature) for i in order}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for i in order:
        if mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


@given(LOGITS, st.floats(0.2, 4), st.integers(0, 14), st.sampled_from([0.05, 0.31, 0.77, 1.0]))
@example([0.0, 2.0, 1e-35], 2.0, 0, 0.77)  # the first and the last are equal after scaling
def test_filters_match_a_reference_implementation(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    logprobs = sampling_logprobs(
        torch.tensor([logits], dtype=torch.float64), temperature=temperature, top_k=top_k, top_p=top_p
    )[0]
    assert logprobs.exp().sum().item() == pytest.approx(1, abs=1e-9)
    expected = _plain(logits, temperature, top_k, top_p)
    # If the nucleus mass equals top_p up to rounding, one token more or less is also correct.
    if not any(
        abs(mass - top_p) < 1e-9 for mass in np.cumsum(sorted(_plain(logits, temperature, top_k, 1), reverse=True))
    ):
        assert logprobs.exp().tolist() == pytest.approx(expected, abs=1e-7)


def test_top_k_resolves_ties_by_the_lowest_id() -> None:
    logprobs = sampling_logprobs(torch.zeros(1, 4), temperature=1.0, top_k=2)
    assert logprobs.exp().tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_a_tiny_top_p_keeps_one_token() -> None:
    logprobs = sampling_logprobs(torch.tensor([[0.0, 1.0, 0.5]]), temperature=1.0, top_p=1e-9)
    assert logprobs.exp().tolist() == [[0.0, 1.0, 0.0]]


def test_a_tiny_temperature_does_not_overflow() -> None:
    logprobs = sampling_logprobs(torch.tensor([[300.0, 299.0]]), temperature=1e-38)
    assert logprobs[0, 0] == 0
    assert logprobs[0, 1] < -1e37


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = torch.tensor([[0.1, 0.7, -3.0]], dtype=torch.bfloat16)
    logprobs = sampling_logprobs(logits, temperature=0.7)
    assert logprobs.dtype == torch.float32
    assert torch.equal(logprobs, sampling_logprobs(logits.float(), temperature=0.7))


def test_logits_are_not_modified() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    sampling_logprobs(logits, temperature=0.5, top_k=1, top_p=0.5)
    assert logits.tolist() == [[1.0, 2.0, 3.0]]


def test_draw_is_the_inverse_cdf() -> None:
    logprobs = torch.tensor([0.25, 0.0, 0.5, 0.25]).log().expand(6, 4)
    points = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999], dtype=torch.float64)
    assert draw(logprobs, points).tolist() == [0, 0, 2, 2, 3, 3]


def test_greedy_takes_the_most_likely_id_and_the_lowest_on_ties() -> None:
    assert draw(torch.tensor([[0.1, 0.4, 0.1, 0.4], [0.9, 0.0, 0.1, 0.0]]).log(), None).tolist() == [1, 0]


@given(LOGITS, st.integers(1, 12), st.integers(0, 2**63 - 1))
def test_a_token_of_probability_zero_is_never_drawn(logits: list[float], top_k: int, seed: int) -> None:
    logprobs = sampling_logprobs(torch.tensor([logits]), temperature=1.0, top_k=top_k).expand(4, -1)
    edges = [0.0, 1.0 - 2.0**-52]
    drawn = draw(logprobs, torch.tensor([*edges, *uniforms(seed, 2)], dtype=torch.float64))
    assert torch.isfinite(logprobs.gather(1, drawn[:, None])).all()


def test_uniforms_depend_on_the_seed_and_are_a_prefix_of_longer_ones() -> None:
    assert uniforms(3, 5).tolist() == uniforms(3, 50)[:5].tolist()
    assert uniforms(3, 5).tolist() != uniforms(4, 5).tolist()
    assert uniforms(2**63 - 1, 1).shape == (1,)
    expected = np.random.Generator(np.random.Philox(key=np.array([11, 0], dtype=np.uint64))).random(3)
    assert uniforms(11, 3).tolist() == expected.tolist()


def test_neighbouring_seeds_are_independent() -> None:
    firsts = np.concatenate([uniforms(seed, 2) for seed in range(5000)])
    from scipy import stats

    assert stats.kstest(firsts, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(firsts[:-2], firsts[2:])[0, 1]) < 0.04


def test_frequencies_follow_the_probabilities() -> None:
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.05, 0.05]], dtype=torch.float64)
    points = torch.tensor(np.concatenate([uniforms(seed, 1) for seed in range(20_000)]))
    counts = draw(probs.log().expand(20_000, -1), points).bincount(minlength=5)
    from scipy import stats

    assert stats.chisquare(counts.numpy(), (probs[0] * 20_000).numpy()).pvalue > 1e-3
