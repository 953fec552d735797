"""Results of evaluations for tests of comparisons and exports."""

from typing import Any

from graders.verdict import Status
from mathppo.evaluate.accuracy import summarise_outcomes
from mathppo.evaluate.outcomes import Outcome
from mathppo.evaluate.result import FirstPrompt, Result
from mathppo.records import Problem


def result(counts: list[int], n: int = 1, *, name: str = "set", model: str = "A", **changes: Any) -> Result:
    problems = [Problem(id=f"p{i}", question="?", reference="1") for i in range(len(counts))]
    outcomes = {
        p.id: [Outcome(Status.CORRECT if j < c else Status.INCORRECT, 5, False) for j in range(n)]
        for p, c in zip(problems, counts, strict=True)
    }
    evaluation = summarise_outcomes(name, 0, "sampled" if n > 1 else "greedy", problems, outcomes)
    fields: dict[str, Any] = {
        **{"benchmark": name, "template": "plain", "golds": "official", "weights": model, "model": model},
        **{"grader": "math", "identity": model, "system": None, "temperature": 0.0, "max_new_tokens": 32, "seed": 0},
        **{"problems_sha256": "p", "prompts_sha256": "q", "notes": [], "evaluation": evaluation},
        "first_prompt": FirstPrompt(problem_id="p0", text="?", ids=[1]),
        **{"problem_ids": [p.id for p in problems], "num_correct": counts, "num_graded": [n] * len(counts)},
    }
    return Result(**{**fields, **changes})
