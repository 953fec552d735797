"""Estimators from many samples per problem, compared with counting every subset."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_statistics import share_of_choices

from mathppo.errors import BadInput
from mathppo.evaluate import consistency, paired, statistics
from mathppo.evaluate.consistency import g_pass_at_k, majority
from mathppo.evaluate.statistics import pass_at_k


@pytest.mark.parametrize("module", [consistency, paired, statistics])
def test_docstring_examples(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))), st.data())
@settings(deadline=None)
def test_g_pass_equals_counting_every_subset(counts: tuple[int, int, int], data: st.DataObject) -> None:
    c, n, k = counts
    j = data.draw(st.integers(1, k))
    assert g_pass_at_k([c], [n], k, j / k)[0] == pytest.approx(share_of_choices(c, n, k, j))
    assert g_pass_at_k([c], [n], k, 0.0) == pytest.approx(pass_at_k([c], [n], k))


def test_majority_splits_ties_and_ignores_missing_answers() -> None:
    assert majority(["7", "7", "5"], [True, True, False]) == 1.0
    assert majority(["5", "7", "5"], [False, True, False]) == 0.0
    assert majority([None, None, "7"], [False, False, True]) == 1.0
    assert majority(["1", "2", "3"], [True, False, False]) == pytest.approx(1 / 3)
    assert majority([], []) == majority([None], [False]) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: g_pass_at_k([1], [2], 1, 1.5), "threshold"),
        (lambda: g_pass_at_k([1], [2], 3, 0.5), "got k = 3"),
        (lambda: majority(["1"], []), "as many answers as verdicts"),
        (lambda: majority(["1", "1"], [True, False]), "the same verdict for equivalent answers"),
    ],
)
def test_invalid_counts_and_votes_are_rejected(call, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()
