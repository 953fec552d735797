"""Reports of unusual runs: one iteration, non-numeric metrics, hostile text."""

import json
import random
import re
from pathlib import Path

import msgspec
import pytest
from synthetic_run import view, write_run

from mathppo.report import write_report, write_views

HOSTILE = "</script><script>window.owned=1</script><img src=x onerror='window.owned=1'>"


def test_a_run_of_one_iteration_shows_its_points(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", iterations=1)).read_text()
    assert "in 1 iteration (" in page
    assert page.count('class="alone"') > 10, "lines of one point"
    (mix,) = re.findall(r"<h3>Verdicts</h3>.*?</svg>", page, re.DOTALL)
    assert mix.count('<path class="area') >= 3
    assert all(len(set(re.findall(r"[ML]([\d.]+),", path))) == 2 for path in re.findall('class="area.*?d="(.*?)"', mix))
    assert ">0.2</text>" not in page.partition('aria-label="Learning curves"')[2].partition("</svg>")[0]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", '"text"', "1e400"])
def test_metrics_that_are_not_numbers_become_a_note(tmp_path: Path, value: str) -> None:
    run = write_run(tmp_path / "run", iterations=12)
    *rows, last = (run / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(last)
    metrics["metrics"]["approx_kl"] = "HERE"
    (run / "metrics.jsonl").write_text("\n".join([*rows, json.dumps(metrics).replace('"HERE"', value)]) + "\n")
    page = write_report(run).read_text()
    assert "metrics.jsonl is unreadable in 1 lines, which are left out; first: " in page
    assert "KL divergence" in page
    assert "in 11 iterations" in page


def test_huge_ids_and_hostile_text_are_escaped(tmp_path: Path) -> None:
    run, source = write_run(tmp_path / "run", iterations=10), random.Random(0)
    views = [
        msgspec.structs.replace(v, problem_id=f"{HOSTILE}{i}{'x' * 5000 * (i == 0)}", question=HOSTILE,
                                reference=HOSTILE, completion=[HOSTILE] * len(v.completion), prompt=[HOSTILE])
        for i, v in enumerate(view(i, source) for i in range(6))
    ]  # fmt: skip
    write_views(run, views)
    page = write_report(run).read_text()
    assert "window.owned=1</script>" not in page
    assert "<img" not in page
    assert page.count("<script") == 2, "the tokens and the viewer"
