"""The page: all sections of a complete run, notes for missing or damaged files, and escaped hostile text."""

import dataclasses
import io
import json
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from synthetic_run import view, write_run

from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.report import terminal_tables, write_report, write_views
from mathppo.report.figures import smoothed
from mathppo.report.load_run import Summary, read_run
from mathppo.report.page import headline


class Page(HTMLParser):
    """Parser that collects elements and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = re.sub(r"\s+", " ", " ".join(self.words)).replace("\u2011", "-")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "quickstart")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "quickstart"))


def test_complete_run_fills_every_section(run: Path) -> None:
    path = write_report(run)
    assert path == run / "report.html"
    page = Page(path)
    assert "raised greedy accuracy on held-out problems from 36.0% to 92.5%, by 56.5 points" in page.text
    assert "in 140 iterations (1 min 38 s in total)." in page.text
    assert "33.9% to 38.1%" in page.text
    assert "Not drawn" not in page.text
    assert "Not shown" not in page.text
    assert "Some files are missing or unreadable" not in page.text
    for title in ("Learning curves", "By level", "Verdicts", "Completion length", "KL divergence", "Clipped tokens",
                  "Explained variance", "Entropy", "Gradient norms", "Value by position", "Advantage by position",
                  "Sampler and learner",
                  "Time", "60 of 60 recorded rollouts"):  # fmt: skip
        assert title in page.text, title
    assert page.tags.count("details") == 60 + 3 + 2, "rollouts, files of the run, regressions"
    assert "share of rollouts that ran out of token budget" in page.text, "metrics are explained"


def test_page_requests_nothing(run: Path) -> None:
    page = Page(write_report(run))
    links = [value or "" for name, value in page.attributes if name in ("src", "href", "action", "srcset", "data")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    text = (run / "report.html").read_text()
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_same_run_renders_to_the_same_bytes(run: Path) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


@pytest.mark.parametrize(
    ("piece", "note"),
    [
        ("metrics.jsonl", "metrics.jsonl is missing: no training curve is drawn"),
        ("evaluations", "evaluations is missing: no held-out curve is drawn"),
        ("rollout_views.jsonl", "rollout_views.jsonl is missing: no rollout is shown"),
        ("config.toml", "config.toml is missing: the settings are not shown"),
        ("manifest.json", "manifest.json is missing"),
        ("summary.json", "summary.json is missing: the wall time is not shown"),
    ],
)
def test_missing_file_becomes_a_note(run: Path, piece: str, note: str) -> None:
    path = run / piece
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = Page(write_report(run))
    assert note in page.text
    assert ("from 36.0% to 92.5%" in page.text) == (piece != "evaluations")


@pytest.mark.parametrize(
    "piece", ["metrics.jsonl", "rollout_views.jsonl", "config.toml", "manifest.json", "summary.json", "controls.json",
              "evaluations/000140/greedy.json"],
)  # fmt: skip
@pytest.mark.parametrize("damage", [b"\xff\xfe\x00 {\n", b'{"schema": "nonsense/9"}\n', b"[1, 2\n"])
def test_damaged_file_becomes_a_note(run: Path, piece: str, damage: bytes) -> None:
    (run / piece).write_bytes(damage)
    page = Page(write_report(run))
    if piece not in ("config.toml", "manifest.json", "summary.json", "controls.json") or damage.startswith(b"\xff"):
        assert f"{piece} is unreadable" in page.text


def test_empty_folder_renders_a_page(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path))
    assert "The run was not evaluated before and after." in page.text
    assert page.text.count("Not drawn") == 6
    assert page.text.count("Not shown") == 2


HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></details></section>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028\u202e\x00\x1b[31m",
    "</textarea><svg onload=alert(1)>",
]


def test_hostile_completions_are_escaped(run: Path) -> None:
    views = [view(i, random.Random(i)) for i in range(4)]
    write_views(run, views)
    expected = Page(write_report(run)).tags
    source = random.Random(0)
    hostile = []
    for original in views:
        tokens = [source.choice(HOSTILE) for _ in original.completion]
        verdict = msgspec.structs.replace(
            original.verdict, answer=None if original.verdict.answer is None else HOSTILE[0]
        )
        hostile.append(
            msgspec.structs.replace(
                original, completion=tokens, question=HOSTILE[0], reference=HOSTILE[1], prompt=HOSTILE, verdict=verdict
            )
        )
    write_views(run, hostile)
    page = Page(write_report(run))
    assert page.tags == expected, "no element came or went"
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    text = (run / "report.html").read_text()
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    embedded = text.split('id="tokens">')[1].split("</script>")[0]
    assert [row["tokens"] for row in json.loads(embedded)] == [v.completion for v in hostile]
    assert "49" not in [word.strip() for word in page.words], "templates in the text are not run"


def test_hostile_files_and_names_are_escaped(run: Path) -> None:
    expected = Page(write_report(run)).tags
    (run / "manifest.json").write_text(HOSTILE[0])
    (run / "config.toml").write_text(f"[learner]\nalgorithm = '''{HOSTILE[0]}'''\n")
    assert Page(write_report(run)).tags == expected


def test_controls_are_drawn_and_named(run: Path) -> None:
    other = write_run(run.parent / "random-reward", lift=0.0, seed=3)
    (run / "controls.json").write_text(json.dumps({"a coin": "../random-reward", "lost": "../nowhere", "self": "."}))
    record = read_run(run)
    assert [control.name for control in record.controls] == ["a coin"]
    assert any("control 'lost' is missing" in note for note in record.notes)
    page = Page(write_report(run, controls=[other]))
    assert "a coin" in page.text
    assert "Dashed" in page.text
    (other / "evaluations").rename(other / "gone")
    assert "a coin, training" in Page(write_report(run)).text, "without evaluations its training curve stands in"


def test_headline_states_the_change(tmp_path: Path) -> None:
    still = read_run(write_run(tmp_path / "still", lift=0.0))
    assert headline(still).startswith(
        "The run did not measurably change greedy accuracy on held-out problems (36.0% to"
    )
    worse = read_run(write_run(tmp_path / "worse", lift=-0.2, iterations=60))
    assert headline(worse).startswith("The run lowered greedy accuracy on held-out problems from 36.0% to")


def test_the_headline_rounds_a_difference_as_the_table_does(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "worse", lift=-0.2, iterations=60))

    def at(evaluation: Evaluation, share: float) -> Evaluation:
        row = replace(evaluation.overall, accuracy=share, low=share - 0.001, high=share + 0.001)
        return replace(evaluation, rows=[row])

    first, last = run.of(Mode.GREEDY)[0], run.of(Mode.GREEDY)[-1]
    said = headline(dataclasses.replace(run, evaluations=[at(first, 55 / 2000), at(last, 4 / 2000)]))
    assert 100 * (4 / 2000 - 55 / 2000) < -2.55 == 100 * (4 - 55) / 2000, "a case that a float's last bit decides"
    assert f"from 2.8% to 0.2%, by {100 * (55 - 4) / 2000:.1f} points" in said


@pytest.mark.parametrize(
    ("wall", "total"),
    [
        (98.5, 98.5),
        ({"a": 1.0, "b": 2.0}, 3.0),
        ({"a": 1.0, "total": 9.0}, 9.0),
        ({"a": 7.0, "total": 6.0}, 7.0),
        ({}, None),
        (None, None),
    ],
)
def test_wall_time_of_any_shape(wall, total) -> None:
    assert Summary(wall_s=wall).total_wall_s == total


def test_smoothing_keeps_the_mean_and_covers_it() -> None:
    source = random.Random(0)
    y = [source.gauss(0.5, 0.1) for _ in range(400)]
    means, low, high = smoothed(y, 21)
    assert sum(means) / 400 == pytest.approx(0.5, abs=0.02)
    assert means[200] == pytest.approx(sum(y[190:211]) / 21)
    assert sum(a <= 0.5 <= b for a, b in zip(low, high, strict=True)) / 400 > 0.85
    assert smoothed([3.0], 5) == ([3.0], [3.0], [3.0])


@pytest.mark.parametrize(("width", "num_tables"), [(60, 2), (79, 2), (80, 1), (120, 1)])
def test_terminal_table_matches_the_page(run: Path, tmp_path: Path, width: int, num_tables: int) -> None:
    console = Console(width=width, file=io.StringIO())
    tables = terminal_tables(run, width)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    text = capture.get()
    assert "36.0%" in text
    assert "91.3% to 93.6%" in text
    assert text.count("greedy") == 1 + 2 * num_tables
    assert len(tables) == num_tables
    assert "…" not in text
    assert [table.row_count for table in terminal_tables(read_run(tmp_path), width)] == [0] * num_tables
