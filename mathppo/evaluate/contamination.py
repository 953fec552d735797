"""Evaluation problems that a policy was trained on: found before training, by text and by runs of words."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence

from mathppo.errors import BadInput
from mathppo.records import Problem, Record

NGRAM_WORDS = 8
"""Words in a run: shorter ones are shared by problems that have nothing else in common."""
NEAR_SHARE = 0.5
"""Share of an evaluation problem's runs that one training problem must hold to be reported as near."""

_WORD = re.compile(r"\w+")
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")
_LOOSE = re.compile(r"\\[,;!: ]|[\s.,;:!?\"'`$“”‘’]")


class ExactHit(Record, frozen=True, tag=False):
    """A training problem that is an evaluation problem, up to case, spacing and punctuation."""

    train_id: str
    evaluation_id: str


class NearHit(Record, frozen=True, tag=False):
    """A training problem that holds much of an evaluation problem's text.

    Args:
        train_id: the training problem.
        evaluation_id: the evaluation problem.
        share: of the evaluation problem's runs of words, how many the training problem holds.
    """

    train_id: str
    evaluation_id: str
    share: float


class SetContamination(Record, frozen=True, tag=False):
    """What training problems share with one evaluation set; hits are in the training problems' order."""

    name: str
    num_problems: int
    exact: list[ExactHit]
    near: list[NearHit]


def find_contamination(
    name: str,
    train: Sequence[Problem],
    evaluation: Sequence[Problem],
    *,
    ngram_words: int = NGRAM_WORDS,
    near_share: float = NEAR_SHARE,
) -> SetContamination:
    """Hold every training problem against every problem of an evaluation set, in one pass over each.

    Args:
        name: of the evaluation set.
        train: training problems.
        evaluation: evaluation problems.
        ngram_words: words in a run; at least 1. Questions with fewer words are held against each other whole only.
        near_share: share of runs from which a pair is near, in (0, 1].

    Raises:
        BadInput: a number out of range.
    """
    if ngram_words < 1 or not 0 < near_share <= 1:
        raise BadInput(
            f"contamination: expected runs of at least 1 word and a share in (0, 1], got {ngram_words} and {near_share}"
        )
    whole: dict[str, str] = {}
    holders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    num_runs: dict[str, int] = {}
    for problem in evaluation:
        for key in _keys(problem):
            whole.setdefault(key, problem.id)
        runs = _runs(problem.question, ngram_words)
        num_runs[problem.id] = len(runs)
        for run in runs:
            holders[run].append(problem.id)
    exact, near = [], []
    for problem in train:
        found = sorted({whole[key] for key in _keys(problem) if key in whole})
        exact += [ExactHit(train_id=problem.id, evaluation_id=evaluation_id) for evaluation_id in found]
        held: dict[str, int] = defaultdict(int)
        for run in _runs(problem.question, ngram_words):
            for evaluation_id in holders.get(run, ()):
                held[evaluation_id] += 1
        near += [
            NearHit(train_id=problem.id, evaluation_id=evaluation_id, share=count / num_runs[evaluation_id])
            for evaluation_id, count in sorted(held.items())
            if count >= near_share * num_runs[evaluation_id] and evaluation_id not in found
        ]
    return SetContamination(name=name, num_problems=len(evaluation), exact=exact, near=near)


def normalised(question: str) -> str:
    """A question without what an editor changes: case, spacing, punctuation, the width of characters.

    Signs of arithmetic stay, and so do points and commas within numbers: they make another problem.

    >>> normalised("How  many? 2.5 + x, say.") == normalised("how many 2.5+x say")
    True
    >>> normalised("2.5+x") == normalised("25+x")
    False
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    # A point within a number is set apart from one that ends a sentence before the latter is taken away.
    marked = _POINT.sub(lambda match: {".": "\x00", ",": ""}[match.group()], text)
    return _LOOSE.sub("", marked)


def _keys(problem: Problem) -> set[str]:
    canonical = {f"canonical {problem.canonical}"} if problem.canonical else set()
    return {f"question {normalised(problem.question)}"} | canonical


def _runs(question: str, size: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(unicodedata.normalize("NFKC", question).casefold())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
