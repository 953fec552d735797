"""Answer extraction: the span and its rule, or the reason of a missing answer."""

import time

import pytest

from graders.extraction.extract import Extraction, ExtractionPolicy, extract
from graders.extraction.markers import last_marker

FOUND = [
    (r"so \boxed{42}.", "42", "boxed"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
    (r"\fbox{7}", "7", "boxed"),
    (r"\framebox{7}", "7", "boxed"),
    (r"\framebox[3cm][c]{7}", "7", "boxed"),
    (r"\boxed 5", "5", "boxed"),
    (r"\boxed{ 5 }", "5", "boxed"),
    (r"\boxed{\boxed{5}}", r"\boxed{5}", "boxed"),
    (r"\boxed{1} no, \boxed{2}", "2", "boxed"),
    (r"\boxed{1} and \boxed{2}", "1, 2", "boxed"),
    (r"\boxed{1}" + "\n\n" + r"\boxed{1}", "1", "boxed"),
    (r"the answer is $\boxed{\frac{1}{2}$. Done", r"\frac{1}{2}", "boxed"),
    (r"\boxed{3} then \boxed{4", "3", "boxed"),
    (r"<think>\boxed{1}</think>\boxed{2}", "2", "boxed"),
    (r"\boxed{1}</think>The answer is 2.", "2", "marker"),
    ("#### 12", "12", "marker"),
    ("<answer> 12 </answer>", "12", "marker"),
    ("<answer>12", "12", "marker"),
    ("# Answer\n\n12", "12", "marker"),
    ("**Answer:** 12", "12", "marker"),
    ("The answer is $x = 3.5$. Good.", "x = 3.5", "marker"),
    ("The answer to the first part is 12, so we stop.", "12", "marker"),
    ("The answer is Mrs. Hilt.", "Mrs. Hilt", "marker"),
    ("Answer:\n$$\n12\n$$", "12", "marker"),
    ("The correct option is (C).", "(C)", "marker"),
    ("Weigh it all.\nSo **(B)** is the right choice!", "(B)", "marker"),
    ("A is the correct answer. No: the answer is B.", "B", "marker"),
    ("The answer is A.\nThus B is the best option.", "B", "marker"),
    ("A: 12", "12", "marker"),
    ("I was wrong: the answer is 3. No: the answer is 4.", "4", "marker"),
    (r"Write it in \boxed{}. The answer is 8.", "8", "marker"),
    (r'He said "write \boxed{9}". The answer is 8.', "8", "marker"),
    ("> \\boxed{9}\nThe answer is 8.", "8", "marker"),
    ("x = 5", "x = 5", "final_line"),
    ("There are 12 apples.", "12", "final_line"),
    ("So 3 + 4 = 7 apples.", "7", "final_line"),
    ("So $3 + 4 = 7$ apples.", "3 + 4 = 7", "final_line"),
    ("It is 2 * 3 = <<2*3=6>>6 dollars", "6", "final_line"),
    ("12<|im_end|>", "12", "final_line"),
    ("So x = - 4.", "- 4", "final_line"),
    ("So there are 4 million of them.", "4 million", "final_line"),
    ("So it is **4**!", "4", "final_line"),
    ("Hence => 4 apples remain.", "4", "final_line"),
    ("So <b>4</b> apples remain.", "4", "final_line"),
    ("The number of wrong votes is 4.", "4", "final_line"),
    ("The second one is bigger by 4.", "4", "final_line"),
]


@pytest.mark.parametrize(("completion", "answer", "rule"), FOUND)
def test_answer_is_found_by_the_expected_rule(completion: str, answer: str, rule: str) -> None:
    found = extract(completion)
    assert (found.answer, found.rule, found.reason) == (answer, rule, "")
    if ", " not in answer:
        assert completion[found.start : found.end] == answer


MISSING = [
    ("", "no_answer"),
    ("I do not know what to say here.", "no_answer"),
    (r"\boxed{}", "empty"),
    (r"The answer is 3. \boxed{}", "empty"),
    (r"\boxed{\text{answer}}", "empty"),
    ("The answer is:", "empty"),
    (r"<think>\boxed{3}", "no_answer"),
    (r"so \boxed{42", "unclosed"),
    ("Neither A nor B is the correct answer.", "no_answer"),
    ("A or B is the correct answer.", "no_answer"),
    ("A is not the correct answer.", "no_answer"),
    ("I doubt that A is the correct answer.", "no_answer"),
    ("It is false: B is the correct answer.", "no_answer"),
    ("B is the correct answer, not C.", "no_answer"),
    ("Is A the correct answer?", "no_answer"),
    ("It is 3 or 4.", "ambiguous"),
    ("There are 3 apples and 4 pears.", "ambiguous"),
    ("we have $a=3$ and $b=4$", "ambiguous"),
    ("Is it 4?", "ambiguous"),
    ("It is false that x = 4.", "ambiguous"),
    ("So x > 4.", "ambiguous"),
    ("So x is less than 4.", "ambiguous"),
    ("So $x$ exceeds $4$.", "ambiguous"),
    ("So it is twice 4.", "ambiguous"),
    ("So it is the square root of 4.", "ambiguous"),
    ("So it is √4.", "ambiguous"),
    ("So it is 4!.", "ambiguous"),
    ("So it is minus $4$.", "ambiguous"),
    ("So it is -$4$.", "ambiguous"),
    ("So $y$ is $4$ more than $5$.", "ambiguous"),
    ("So $y$ is $5$ million.", "ambiguous"),
    ("So n is $10$ mod $4$.", "ambiguous"),
]


@pytest.mark.parametrize(("completion", "reason"), MISSING)
def test_missing_answer_has_a_reason(completion: str, reason: str) -> None:
    found = extract(completion)
    assert (found.answer, found.reason) == (None, reason)


def test_box_copied_from_the_question_is_skipped() -> None:
    question = r"Write the answer as \boxed{5}."
    assert extract(r"As asked, \boxed{5}. The answer is 6.", question=question).answer == "6"


def test_policy_disables_rules() -> None:
    text = r"#### 3" + "\n" + r"\boxed{4}" + "\n5"
    assert extract(text).answer == "4"
    assert extract(text, policy=ExtractionPolicy(boxed=False)).answer == "3"
    assert extract(text, policy=ExtractionPolicy(boxed=False, markers=False)).answer == "5"
    off = ExtractionPolicy(boxed=False, markers=False, final_line=False)
    assert extract(text, policy=off) == Extraction(None, len(text), len(text), "none", "no_answer")


def test_markers_are_searched_near_the_end_only() -> None:
    text = "The answer is 3. " + "and so on, " * 40
    assert extract(text).answer == "3"
    assert extract(text, policy=ExtractionPolicy(tail_chars=50)).answer is None


def test_answer_beyond_the_maximum_length_is_rejected() -> None:
    assert extract(r"\boxed{" + "1" * 30_000 + "}").reason == "too_long"


@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{",
        "answer is ",
        "<answer>",
        '"\\boxed{1}"',
        r"\boxed{1} or ",
        "$",
        "#",
        "\n",
        " ",
        r"\(",
        "<think>",
        "*",
    ],
)
def test_extraction_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.perf_counter()
        extract(text)
        return time.perf_counter() - start

    assert min(seconds(200_000) for _ in range(2)) < 0.5


@pytest.mark.parametrize("unit", ["answer ", "B is the correct answer, ", ". B is the correct answer no", "option\n"])
def test_keywords_without_a_marker_take_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    start = time.process_time()
    assert last_marker(text, 0, len(text)) is None
    assert time.process_time() - start < 1.0
