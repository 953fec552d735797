"""Contamination check: finds evaluation problems among training problems, by text and by word n-grams."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence

from mathppo.errors import BadInput
from mathppo.records import Problem, Record

NGRAM_WORDS = 8
"""Words per n-gram; shorter n-grams are shared by unrelated problems."""
NEAR_SHARE = 0.5
"""Fraction of the n-grams of an evaluation problem that a training problem must contain to be reported as near."""

_WORD = re.compile(r"\w+")
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")
_LOOSE = re.compile(r"\\[,;!: ]|[\s.,;:!?\"'`$“”‘’]")


class ExactHit(Record, frozen=True, tag=False):
    """A training problem that equals an evaluation problem up to case, spacing and punctuation."""

    train_id: str
    evaluation_id: str


class NearHit(Record, frozen=True, tag=False):
    """A training problem that contains much of the text of an evaluation problem.

    Args:
        train_id: id of the training problem.
        evaluation_id: id of the evaluation problem.
        share: fraction of the n-grams of the evaluation problem that the training problem contains.
    """

    train_id: str
    evaluation_id: str
    share: float


class SetContamination(Record, frozen=True, tag=False):
    """Overlap of the training problems with one evaluation set; hits are in the order of the training problems."""

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
    """Compare every training problem with every problem of an evaluation set, in one pass over each.

    Args:
        name: name of the evaluation set.
        train: training problems.
        evaluation: evaluation problems.
        ngram_words: words per n-gram, at least 1; questions with fewer words are compared as a whole only.
        near_share: fraction of n-grams from which a pair is near, in (0, 1].

    Raises:
        BadInput: a number is out of range.
    """
    if ngram_words < 1 or not 0 < near_share <= 1:
        raise BadInput(
            "contamination: expected n-grams of at least 1 word and a share in (0, 1], got "
            f"{ngram_words} and {near_share}"
        )
    id_by_key: dict[str, str] = {}
    ids_by_ngram: dict[tuple[str, ...], list[str]] = defaultdict(list)
    num_ngrams: dict[str, int] = {}
    for problem in evaluation:
        for key in _keys(problem):
            id_by_key.setdefault(key, problem.id)
        ngrams = _ngrams(problem.question, ngram_words)
        num_ngrams[problem.id] = len(ngrams)
        for ngram in ngrams:
            ids_by_ngram[ngram].append(problem.id)
    exact, near = [], []
    for problem in train:
        found = sorted({id_by_key[key] for key in _keys(problem) if key in id_by_key})
        exact += [ExactHit(train_id=problem.id, evaluation_id=evaluation_id) for evaluation_id in found]
        shared: dict[str, int] = defaultdict(int)
        for ngram in _ngrams(problem.question, ngram_words):
            for evaluation_id in ids_by_ngram.get(ngram, ()):
                shared[evaluation_id] += 1
        near += [
            NearHit(train_id=problem.id, evaluation_id=evaluation_id, share=count / num_ngrams[evaluation_id])
            for evaluation_id, count in sorted(shared.items())
            if count >= near_share * num_ngrams[evaluation_id] and evaluation_id not in found
        ]
    return SetContamination(name=name, num_problems=len(evaluation), exact=exact, near=near)


def normalise(question: str) -> str:
    """Return a question without case, spacing, punctuation and character width.

    Arithmetic signs and decimal points remain, because changing them changes the problem.

    >>> normalise("How  many? 2.5 + x, say.") == normalise("how many 2.5+x say")
    True
    >>> normalise("2.5+x") == normalise("25+x")
    False
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    # Decimal points are marked first, because other points are removed.
    marked = _POINT.sub(lambda match: {".": "\x00", ",": ""}[match.group()], text)
    return _LOOSE.sub("", marked)


def _keys(problem: Problem) -> set[str]:
    canonical = {f"canonical {problem.canonical}"} if problem.canonical else set()
    return {f"question {normalise(problem.question)}"} | canonical


def _ngrams(question: str, size: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(unicodedata.normalize("NFKC", question).casefold())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
