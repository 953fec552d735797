"""Comparison tables in terminals of any width: no number is cut, even with long names."""

import re

import pytest
from results import result
from rich.console import Console

from mathppo.evaluate.compare import Comparison, compare_results
from mathppo.report import comparison_tables

LONG = "a_set_with_a_very_long_name_of_its_own_that_fills_a_line_of_eighty_columns_and_more"
NUMBERS = ["40.0", "100.0", "+60.0", "+50.0 to +70.0", "< 0.0001", "13.8"]


@pytest.fixture
def comparison() -> Comparison:
    a = [result([1] * 40 + [0] * 60, name=name, model="[bold]A") for name in ("short", LONG)]
    b = [result([1] * 100, name=name, model="runs/" + 20 * "many-words-") for name in ("short", LONG)]
    return compare_results(a, [b])


def printed(comparison: Comparison, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        for table in comparison_tables(comparison, width):
            console.print(table)
    return capture.get()


@pytest.mark.parametrize("width", [50, 60, 80, 87, 88, 120, 200])
def test_nothing_is_cut_or_wider_than_the_terminal(comparison: Comparison, width: int) -> None:
    text = printed(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for number in NUMBERS:
        assert len(re.findall(rf"(?<!\S){re.escape(number)}(?!\S)", text.replace("│", " "))) == 2, number
    folded = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert f"{LONG}.plain.greedy" in folded
    assert "[bold]A" in text, "a name is no markup"


def test_a_wide_terminal_gets_one_table_for_each_pair(comparison: Comparison) -> None:
    assert len(comparison_tables(comparison, 120)) == 1
    assert len(comparison_tables(comparison, 80)) == 2
