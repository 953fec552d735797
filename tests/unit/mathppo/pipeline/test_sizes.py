"""More completions than fit in memory are rejected before the first is sampled."""

import pytest
from tiny_runs import tiny_config

from mathppo.errors import BadInput
from mathppo.pipeline.stages.generate import MAX_REQUESTS, check_size, choose_problems, make_requests
from mathppo.prompts import build_equation_tokenizer
from mathppo.records import Problem

PROBLEMS = [Problem(id=f"p{i}", question="Solve for x: x=1", reference="1") for i in range(3)]


def test_size_limit_is_exact() -> None:
    check_size("set", 1000, MAX_REQUESTS // 1000)
    with pytest.raises(BadInput, match=r"set: expected at most 1,000,000 completions at once, got 1,000 problems x"):
        check_size("set", 1000, MAX_REQUESTS // 1000 + 1)


def test_a_billion_samples_or_prompts_are_rejected_at_once() -> None:
    with pytest.raises(BadInput, match=r"got 3 problems x 1,000,000,000 = 3,000,000,000; ask for fewer"):
        make_requests(PROBLEMS, build_equation_tokenizer(), tiny_config(), samples=10**9, purpose=["train"])
    with pytest.raises(BadInput, match=r"generator\.prompts_per_iteration: expected at most 1,000,000 completions"):
        choose_problems(PROBLEMS, 0, 10**9, seed=0)
