"""Progress: plain lines in a log, a bar on a terminal, no output from `SILENT`."""

import io
import re

import pytest
from rich.console import Console

from mathppo import progress
from mathppo.progress import SILENT, Reporter


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def log() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=100)


def test_log_ends_with_count_rate_and_numbers() -> None:
    console = log()
    with Reporter(console).task("teach", 4, done=1) as advance:
        advance(1, loss=2.0)
        advance(2, loss=0.12345, **{"tokens/s": 6523.4})
    (line,) = shown(console).splitlines()
    assert line.startswith("teach: 4/4, ")
    assert line.endswith("/s loss 0.12 tokens/s 6,523")
    assert "e+" not in line


def test_rate_excludes_work_of_an_earlier_run() -> None:
    console = log()
    with Reporter(console).task("teach", 4, done=4):
        pass
    (line,) = shown(console).splitlines()
    assert line == "teach: 4/4, 0.0 s"


def test_log_gets_periodic_lines_with_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(10 * tick) for tick in range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console = log()
    with Reporter(console).task("teach", 4) as advance:
        for _ in range(4):
            advance(1)
    lines = shown(console).splitlines()
    assert len(lines) >= 3
    assert "s left" in lines[0]
    assert "left" not in lines[-1]


def test_terminal_shows_a_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Reporter(console).task("teach", 3) as advance:
        advance(3, loss=0.5)
    assert "3/3" in shown(console)
    assert "loss 0.5" in shown(console)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bar_fits_one_line_with_any_title(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    with Reporter(console).task("[red]a_set_with_a_very_long_name_of_its_own[/nope] answers", 200_000) as advance:
        advance(200_000, reward=0.5, accuracy=0.123, approx_kl=1.2e-5, length=123.0)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(console)))
    assert max(map(len, lines)) <= width
    assert any(line.startswith("[red]a_set_") and "200000/200000" in line for line in lines)


def test_text_is_not_read_as_markup() -> None:
    console = log()
    Reporter(console).say("accuracy [0.5, 0.6] on [bold]")
    assert shown(console) == "accuracy [0.5, 0.6] on [bold]\n"


def test_silent_reporter_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    SILENT.say("anything")
    with SILENT.task("teach", 2) as advance:
        advance(2, loss=1.0)
    assert capsys.readouterr() == ("", "")
