"""Result of one policy on one problem set under one prompt, problem by problem, for comparisons and exports."""

from collections.abc import Mapping, Sequence

from graders.verdict import Status
from mathppo.errors import BadInput
from mathppo.evaluate.accuracy import Evaluation
from mathppo.evaluate.outcomes import Outcome
from mathppo.records import Problem, Record
from mathppo.storage import store


class FirstPrompt(Record, frozen=True, tag=False):
    """The first prompt of a set as given to the model.

    Args:
        problem_id: the problem.
        text: the prompt, special tokens shown.
        ids: its token ids.
    """

    problem_id: str
    text: str
    ids: list[int]


class Result(Record, frozen=True, tag="result/1"):
    """One evaluation.

    Args:
        benchmark: the problem set.
        template: prompt template.
        golds: `corrected` or `official`.
        weights: identity of the policy's weights.
        model: display name of the policy.
        grader: name of the grader.
        identity: hash of weights, set, prompt template, sampling and seed, by which samples are found in the log.
        system: system prompt of a chat; None for the template's default.
        temperature: 0 for greedy.
        max_new_tokens: budget of one completion.
        seed: the run's.
        problems_sha256: of the problems; equal for results on the same questions and references.
        prompts_sha256: of all prompt ids.
        first_prompt: the first prompt; None if the prompts are not known.
        notes: for the reader, such as corrected answers.
        evaluation: the rows.
        problem_ids: of every problem, in the set's order.
        num_correct: right samples of each problem.
        num_graded: graded samples of each problem.
    """

    benchmark: str
    template: str
    golds: str
    weights: str
    model: str
    grader: str
    identity: str
    system: str | None
    temperature: float
    max_new_tokens: int
    seed: int
    problems_sha256: str
    prompts_sha256: str
    first_prompt: FirstPrompt | None
    notes: list[str]
    evaluation: Evaluation
    problem_ids: list[str]
    num_correct: list[int]
    num_graded: list[int]

    def __post_init__(self) -> None:
        if not len(self.problem_ids) == len(self.num_correct) == len(self.num_graded) > 0:
            raise BadInput(
                f"result {self.benchmark!r}: expected two counts for each of {len(self.problem_ids)} problems, got "
                f"{len(self.num_correct)} and {len(self.num_graded)}; run evaluate again"
            )

    @property
    def label(self) -> str:
        """Set, prompt and mode in one word; results with the same label are comparable."""
        return f"{self.benchmark}.{self.template}.{self.evaluation.mode}"


def problems_hash(problems: Sequence[Problem]) -> str:
    """Return the identity of questions and references."""
    return store.fingerprint(problems=[[p.id, p.question, p.reference] for p in problems])


def prompts_hash(prompts: Mapping[str, Sequence[int]]) -> str:
    """Return the identity of all prompts, given by problem id."""
    return store.fingerprint(prompts=sorted((name, list(ids)) for name, ids in prompts.items()))


def counts_of(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return the number of right and of graded samples."""
    return sum(o.correct for o in outcomes), sum(o.status is not Status.ERROR for o in outcomes)
