"""Evaluation of a problem set: accuracies with intervals, and the shares that explain them.

Every row states how many completions were truncated, gave no answer, could not be read, exhausted the grader, or made
it fail.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from graders.verdict import Status
from mathppo.errors import BadInput
from mathppo.evaluate.outcomes import Outcome, Pattern, of_several_samples
from mathppo.evaluate.reference_answers import answer_type
from mathppo.evaluate.statistics import accuracy_interval
from mathppo.records import Problem, Record

Share = Annotated[float, Meta(ge=0, le=1)]


class Mode(StrEnum):
    """Sampling mode of an evaluation."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


class Group(StrEnum):
    """The property that the problems of a row share."""

    ALL = "all"
    FAMILY = "family"
    """Kind or subject."""
    LEVEL = "level"
    ANSWER = "answer"
    """Type of the right answer."""


class EvaluationRow(Record, frozen=True, tag=False):
    """One group of problems.

    Shares are of all samples. Accuracies are of the samples that the grader could grade, and None without any.

    Args:
        group: the property that the problems share.
        label: the family or level; `"all"` for the whole set, `"unknown"` for problems without one.
        num_problems: problems in the group.
        num_samples: completions of them, grader errors included.
        accuracy: correct completions over graded ones.
        low: lower bound of the accuracy's 95 % interval: Wilson for one sample per problem, else bootstrap over
            problems.
        high: upper bound.
        finished_accuracy: accuracy among the completions that sampled a stop token.
        truncated_share: ran out of token budget.
        no_answer_share: states no final answer.
        unparsable_share: states one that cannot be read.
        over_budget_share: exhausted the grader's budget; counted as wrong.
        error_share: the grader itself failed; left out of accuracies.
        mean_length_tokens: mean completion length, stop token included.
        p95_length_tokens: the smallest length that 95 % of the completions do not exceed.
        pass_at_k: unbiased pass@k, mean over problems, for every k up to the samples per problem; empty
            for one sample.
        majority_at_k: maj@k at powers of two and at the samples per problem; empty without answer classes.
        g_pass: G-Pass at all samples, by threshold: `0.25`, `0.5`, `0.75`, `1`; `mean` is mG-Pass over thresholds
            above one half.
        intervals: 95 % intervals over problems by name, `pass@4` or `maj@8`; of the whole set only.
    """

    group: Group
    label: str
    num_problems: int
    num_samples: int
    accuracy: Share | None
    low: Share
    high: Share
    finished_accuracy: Share | None
    truncated_share: Share
    no_answer_share: Share
    unparsable_share: Share
    over_budget_share: Share
    error_share: Share
    mean_length_tokens: float
    p95_length_tokens: float
    pass_at_k: dict[int, Share] = msgspec.field(default_factory=dict)
    majority_at_k: dict[int, Share] = msgspec.field(default_factory=dict)
    g_pass: dict[str, Share] = msgspec.field(default_factory=dict)
    intervals: dict[str, tuple[Share, Share]] = msgspec.field(default_factory=dict)


class Evaluation(Record, frozen=True, tag="evaluation/1"):
    """One policy on one problem set.

    Args:
        name: the problem set.
        policy_step: number of updates that the policy had seen.
        mode: greedy or sampled.
        samples_per_problem: the same for every problem.
        rows: the whole set first, then families by name, then levels from the lowest.
    """

    name: str
    policy_step: int
    mode: Mode
    samples_per_problem: int
    rows: list[EvaluationRow]

    def __post_init__(self) -> None:
        if not self.rows or self.rows[0].group is not Group.ALL:
            raise BadInput(f"evaluation {self.name!r}: expected the row of the whole set first; re-run evaluate")

    @property
    def overall(self) -> EvaluationRow:
        """The row of the whole set."""
        return self.rows[0]

    def by(self, group: Group) -> list[EvaluationRow]:
        """Return the rows of one grouping, in order."""
        return [row for row in self.rows if row.group is group]


def summarise_outcomes(
    name: str,
    policy_step: int,
    mode: Mode | str,
    problems: Sequence[Problem],
    outcomes: Mapping[str, Sequence[Outcome]],
    *,
    by_answer: bool = False,
    seed: int = 0,
) -> Evaluation:
    """Compute the rows of an evaluation; the same outcomes in any order give the same bytes.

    Args:
        name: the problem set.
        policy_step: number of updates that the policy had seen.
        mode: `"greedy"` or `"sampled"`.
        problems: the whole set, at least one.
        outcomes: of every problem by id, equally many; see `outcomes_of`.
        by_answer: add rows by type of the right answer.
        seed: of the bootstrap and of maj@k's subsets; each row starts from it, so that rows are independent.

    Returns:
        Rows for the whole set, and by family and by level if problems state them.
    """
    groups: dict[tuple[Group, str | int], list[Sequence[Outcome]]] = defaultdict(list)
    families, levels = any(p.family for p in problems), any(p.level for p in problems)
    for problem in problems:
        samples = outcomes[problem.id]
        groups[Group.ALL, "all"].append(samples)
        if families:
            groups[Group.FAMILY, problem.family].append(samples)
        if levels:
            groups[Group.LEVEL, problem.level].append(samples)
        if by_answer:
            groups[Group.ANSWER, answer_type(problem.reference)].append(samples)
    order = list(Group)
    known: dict[tuple[Pattern, int], float] = {}
    rows = [
        _row(group, str(label or "unknown"), groups[group, label], seed, known)
        for group, label in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))
    ]
    return Evaluation(
        name=name,
        policy_step=policy_step,
        mode=Mode(mode),
        samples_per_problem=len(outcomes[problems[0].id]),
        rows=rows,
    )


def _row(
    group: Group,
    label: str,
    problems: Sequence[Sequence[Outcome]],
    seed: int,
    known: dict[tuple[Pattern, int], float],
) -> EvaluationRow:
    samples = [item for problem in problems for item in problem]
    graded = [[item for item in problem if item.status is not Status.ERROR] for problem in problems]
    num_correct, num_graded = [sum(item.correct for item in row) for row in graded], [len(row) for row in graded]
    low, high = accuracy_interval(num_correct, num_graded, np.random.default_rng(seed))
    finished = [item for row in graded for item in row if not item.truncated]
    lengths = np.sort([item.num_tokens for item in samples])
    several = of_several_samples(problems, seed, with_intervals=group is Group.ALL, known=known)

    def share(status: Status) -> float:
        return sum(item.status is status for item in samples) / len(samples)

    return EvaluationRow(
        group=group,
        label=label,
        num_problems=len(problems),
        num_samples=len(samples),
        accuracy=sum(num_correct) / sum(num_graded) if sum(num_graded) else None,
        low=low,
        high=high,
        finished_accuracy=sum(item.correct for item in finished) / len(finished) if finished else None,
        truncated_share=sum(item.truncated for item in samples) / len(samples),
        no_answer_share=share(Status.NO_ANSWER),
        unparsable_share=share(Status.UNPARSABLE),
        over_budget_share=share(Status.OVER_BUDGET),
        error_share=share(Status.ERROR),
        mean_length_tokens=float(lengths.sum() / len(lengths)),
        p95_length_tokens=float(np.quantile(lengths, 0.95, method="inverted_cdf")),
        **several._asdict(),
    )
