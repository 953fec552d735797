"""Before/after comparison, choice of a step, and worst regressions."""

from pathlib import Path

import pytest
from synthetic_run import write_run

from mathppo.report import write_report
from mathppo.report.before_after import choices, compare_ends, read_results, worst_regressions
from mathppo.report.load_run import read_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", iterations=60)


def test_first_and_last_evaluation_are_compared_and_a_step_is_chosen(run_dir: Path) -> None:
    results = read_results(run_dir, [])
    comparison = compare_ends(results)
    assert comparison is not None
    assert [one.label for one in comparison.sets] == ["linear.plain.greedy", "linear.plain.sampled"]
    assert all(one.difference > 0.2 and one.p_holm < 0.01 for one in comparison.sets)
    assert "step 60 is better than step 0" in comparison.sets[0].sentence
    chosen = choices(results)
    assert [choice.label for choice in chosen] == ["linear.plain.greedy", "linear.plain.sampled"]
    assert all(choice.num_dev + choice.num_held_out == 500 for choice in chosen), "the problems of every step"
    assert compare_ends(results[:1]) is None
    assert choices(results[:2]) == []


def test_regressions_are_problems_that_were_solved_before(run_dir: Path) -> None:
    found = worst_regressions(run_dir, read_results(run_dir, []))
    assert [(one.problem.id, one.mode, one.lost) for one in found] == [("p0", "greedy", 1.0), ("p1", "greedy", 1.0)]
    assert found[0].before.verdict.correct
    assert not found[0].after.verdict.correct
    assert found[0].after.rollout.policy_step == 60
    assert worst_regressions(run_dir, read_results(run_dir, []), 1) == found[:1]


def test_page_renders_the_mathematics_of_regressions(run_dir: Path) -> None:
    page = write_report(run_dir).read_text()
    assert 'id="comparison"' in page
    assert "dev problems choose step" in page
    assert "Worst regressions" in page
    assert "<mfrac><mi>x</mi><mn>2</mn></mfrac>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.partition('id="regressions"')[2].partition("</section>")[0]


def test_unreadable_result_becomes_a_note(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", iterations=20)
    broken = run_dir / "evaluations" / "000000" / "greedy.result.json"
    broken.write_text("{}")
    record = read_run(run_dir)
    assert any("greedy.result.json is unreadable and left out" in note for note in record.notes)
    assert len(record.evaluations) == 4
    assert 'id="before-after"' in write_report(run_dir).read_text()
