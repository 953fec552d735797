from fractions import Fraction

import pytest
from oracles_equations import fact_key, value

from mathppo.errors import BadInput
from mathppo.problems import split_of
from mathppo.problems.families.facts import FACTS
from mathppo.prompts import SHORT_EXAMPLES


@pytest.mark.parametrize(("fact", "reference"), [("12+7", "19"), ("21-8", "13"), ("3*20", "60")])
def test_reference_and_derivation(fact: str, reference: str) -> None:
    item = FACTS.parse(f"Evaluate: {fact}")
    assert (item.question, item.reference, item.slips()) == (f"Evaluate: {fact}", reference, ())
    assert item.derivation() == rf"\boxed{{{reference}}}"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_fact_of_a_level_equals_its_reference_and_has_the_canonical_form_of_its_swap(level: int) -> None:
    canonical = {}
    for item in FACTS.space(level):
        fact = item.question.removeprefix("Evaluate: ")
        assert value(fact) == Fraction(item.reference) > 0
        assert canonical.setdefault(fact_key(fact), item.canonical) == item.canonical
    assert len(set(canonical.values())) == len(canonical)


def test_examples_of_the_short_prompt_are_correct_and_on_the_training_side() -> None:
    for question, work in SHORT_EXAMPLES:
        item = FACTS.parse(question)
        assert work == f"{question.removeprefix('Evaluate: ')}={item.reference}"
        assert split_of(item.canonical) == "train"


@pytest.mark.parametrize("question", ["Simplify: 2x", "Evaluate: 1+2+3", "Evaluate: 0+2", f"Evaluate: {'9' * 500}+1"])
def test_parse_rejects_other_questions(question: str) -> None:
    with pytest.raises(BadInput, match=r"expected (a question|a fact)"):
        FACTS.parse(question)
