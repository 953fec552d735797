"""The grader takes every right demonstration, and no slipped one with another answer."""

from collections.abc import Iterator

import pytest

from graders import GraderPool, Status
from mathppo.problems import HELD_OUT_COUNTS, load_held_out
from mathppo.problems.families import family_named


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(grader="math", num_workers=1) as pool:
        yield pool


@pytest.mark.parametrize("name", HELD_OUT_COUNTS)
def test_right_demonstrations_are_correct(name: str, pool: GraderPool) -> None:
    problems = load_held_out(name)[:300]
    verdicts = pool.grade([(problem.demonstration, problem.reference) for problem in problems])
    refused = [
        (problem.question, verdict) for problem, verdict in zip(problems, verdicts, strict=True) if not verdict.correct
    ]
    assert not refused


@pytest.mark.parametrize("name", [name for name in HELD_OUT_COUNTS if name != "facts"])  # where nothing can slip
def test_slipped_demonstrations_are_correct_only_where_their_answer_is_the_reference(
    name: str, pool: GraderPool
) -> None:
    slipped = [
        (item.derivation(slip), problem.reference)
        for problem in load_held_out(name)[:100]
        for item in [family_named(name).parse(problem.question)]
        for slip in item.slips()
    ]
    assert slipped
    for (derivation, reference), verdict in zip(slipped, pool.grade(slipped), strict=True):
        right = derivation.endswith(f"\\boxed{{{reference}}}")
        assert verdict.status is (Status.CORRECT if right else Status.INCORRECT), (derivation, reference)
