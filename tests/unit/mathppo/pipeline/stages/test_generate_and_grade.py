"""Stages `generate` and `grade`: resumed to the same artefacts, and returned as they are stored."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_runs import scored_rollout, tiny_config

from graders import GraderPool
from mathppo.errors import BadArtefact, BadInput
from mathppo.generator.base import Request, Sampling
from mathppo.pipeline.stages import generate as generate_module
from mathppo.pipeline.stages import grade as grade_module
from mathppo.pipeline.stages.generate import generate
from mathppo.pipeline.stages.grade import BackgroundGrader, grade
from mathppo.records import Problem, Rollout
from mathppo.storage import store

SAMPLING = Sampling(max_new_tokens=4, stop_token_ids=(2,))
PROBLEMS = {f"p{i}": Problem(id=f"p{i}", question="?", reference=str(i % 2)) for i in range(7)}
REQUESTS = [Request(problem_id=name, sample_index=0, prompt_ids=(1,), seed=0) for name in PROBLEMS]
ROLLOUTS = [scored_rollout(problem_id=name, behaviour_logprob=-1 / 3).rollout for name in PROBLEMS]


class Engine:
    """Yields prepared rollouts in reverse order, counts requests, and can be interrupted."""

    def __init__(self, interrupt_after: int = -1) -> None:
        self.num_asked, self.interrupt_after = 0, interrupt_after

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        for request in reversed(requests):
            if self.num_asked == self.interrupt_after:
                raise KeyboardInterrupt
            self.num_asked += 1
            yield ROLLOUTS[int(request.problem_id[1:])]


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(grader="exact", num_workers=1) as pool:
        yield pool


def test_generate_resumes_after_its_last_whole_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "PORTION", 3)
    out, seen = tmp_path / "rollouts", list[Rollout]()
    with pytest.raises(KeyboardInterrupt):
        generate(Engine(interrupt_after=5), REQUESTS, SAMPLING, out, made_from="x")  # type: ignore[arg-type]
    engine = Engine()
    found = generate(engine, REQUESTS, SAMPLING, out, made_from="x", on_rollout=seen.append)  # type: ignore[arg-type]
    assert engine.num_asked == len(seen) == 4
    assert found == store.read_artefact(out, store.ROLLOUTS) == ROLLOUTS
    assert generate(engine, REQUESTS, SAMPLING, out, made_from="x") == ROLLOUTS  # type: ignore[arg-type]
    assert engine.num_asked == 4, "a finished artefact is read"
    with pytest.raises(BadArtefact, match="was made from other inputs or settings"):
        generate(engine, REQUESTS, SAMPLING, out, made_from="y")  # type: ignore[arg-type]


def test_grade_resumes_and_returns_what_it_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: GraderPool
) -> None:
    monkeypatch.setattr(grade_module, "PORTION", 2)
    source, out = tmp_path / "rollouts", tmp_path / "scored"
    store.write_artefact(source, store.ROLLOUTS, ROLLOUTS, "x")
    graded: list[str] = []

    class Interrupted(BackgroundGrader):
        def verdicts(self, rollouts: Sequence[Rollout]) -> list:
            if len(graded) == 4:
                raise KeyboardInterrupt
            graded.extend(rollout.problem_id for rollout in rollouts)
            return super().verdicts(rollouts)

    with pytest.raises(KeyboardInterrupt):
        grade(Interrupted(pool, PROBLEMS, "plain"), ROLLOUTS, tiny_config(), out, source=source, made_from="x")
    grader = BackgroundGrader(pool, PROBLEMS, "plain")
    scored = grade(grader, ROLLOUTS, tiny_config(), out, source=source, made_from="x")
    assert graded == ["p0", "p1", "p2", "p3"]
    assert [item.rollout for item in scored] == ROLLOUTS
    assert store.read_scored(out) == scored
    assert grade(grader, ROLLOUTS, tiny_config(), out, source=source, made_from="x") == scored


@pytest.mark.parametrize(("template", "answer"), [("few_shot", "8"), ("plain", "18")])
def test_later_turns_of_a_completion_are_not_graded(template: str, answer: str) -> None:
    """Training grades the text that `evaluate --benchmarks` grades."""
    problem = Problem(id="p", question="4+4?", reference="8")
    completion = " 4+4=8. \\boxed{8}\n\nQuestion: And 9+9?\nAnswer: \\boxed{18}"
    rollout = Rollout(
        problem_id="p", sample_index=0, prompt_ids=[1], completion_ids=[5], completion=completion,
        behaviour_logprobs=[-1.0], finish_reason=ROLLOUTS[0].finish_reason, policy_step=0, seed=0,
    )  # fmt: skip
    with GraderPool(grader="math", num_workers=1) as math_pool:
        (verdict,) = BackgroundGrader(math_pool, {"p": problem}, template).verdicts([rollout])
    assert verdict.answer == answer


def test_rollout_of_an_unknown_problem_is_rejected(pool: GraderPool) -> None:
    with pytest.raises(BadInput, match="rollout of problem 'p0': expected one of the 0 problems given; give grade"):
        BackgroundGrader(pool, {}, "plain").add(ROLLOUTS[0])
