"""The report in a real browser: loading, pointing, clicking, filtering and layout."""

import base64
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from chromium import Browser
from synthetic_run import view, write_run

from mathppo.report import write_report, write_views

HOSTILE = ["</script><script>window.owned=1</script>", "<img src=x onerror='window.owned=1'>", "<b>bold</b>", "\n"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs") / "quickstart", iterations=60)
    control = write_run(run.parent / "random-reward", lift=0.0, iterations=60)
    return write_report(run, controls=[control])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def problems(browser: Browser) -> list[object]:
    """Return log errors, exceptions, and requests other than the page itself."""
    found: list[object] = []
    for event in browser.events:
        method, parameters = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            found.append(parameters)
        if method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            found.append(parameters["request"]["url"])
    return found


def quickest(browser: Browser, path: Path) -> float:
    """Return the seconds to open a page, the best of three."""
    return min(browser.open(path) for _ in range(3))


def shown(browser: Browser) -> int:
    return browser.run("[...document.querySelectorAll('.rollout')].filter((e) => !e.hidden).length")


def change(browser: Browser, name: str, value: str) -> None:
    browser.run(
        f"(() => {{ const e = document.getElementById('{name}'); e.value = '{value}'; "
        "e.dispatchEvent(new Event('change')); e.dispatchEvent(new Event('input')) })()"
    )


def test_page_opens_fast_and_without_errors(browser: Browser, report: Path) -> None:
    browser.resize(1240, 900)
    assert quickest(browser, report) < 2.0
    assert problems(browser) == []
    assert "raised greedy accuracy" in browser.run("document.querySelector('h1').textContent")


@pytest.mark.parametrize(("width", "dark"), [(1240, False), (1240, True), (390, False), (390, True)])
def test_page_fits_the_screen_in_light_and_dark(browser: Browser, report: Path, width: int, *, dark: bool) -> None:
    browser.resize(width, 900, dark=dark)
    browser.open(report)
    assert browser.run("document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
    too_small = (
        "[...document.querySelectorAll('svg text')].filter((t) => t.getBoundingClientRect().height > 0 && "
        "t.getBoundingClientRect().height < 9).length"
    )
    assert browser.run(too_small) == 0, "every label can be read"
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    red = int(background.removeprefix("rgb(").split(",")[0])
    assert (red < 60) == dark
    png = base64.b64decode(browser.screenshot())
    assert struct.unpack(">I", png[16:20])[0] == width


def test_pointing_at_a_chart_shows_its_values(browser: Browser, report: Path) -> None:
    browser.resize(1240, 900)
    browser.open(report)
    browser.hover(*browser.centre("#learning .wide svg"))
    tip = browser.run("document.getElementById('tip').innerText")
    assert not browser.run("document.getElementById('tip').hidden")
    assert "iteration 29" in tip, "the drawing's middle is a little left of the axis's"
    assert "training reward, sampled" in tip
    assert "%" in tip
    browser.hover(2, 2)
    assert browser.run("document.getElementById('tip').hidden")


def test_pointing_at_a_token_shows_its_numbers(browser: Browser, report: Path) -> None:
    browser.resize(1240, 900)
    browser.open(report)
    assert browser.run("document.querySelectorAll('.rollout[open]').length") == 2
    browser.hover(*browser.centre(".rollout[open] .t:nth-child(3)"))
    line = browser.run("document.querySelector('.rollout[open] .readout').innerText")
    for name in ("token 3 of", "text", "probability", "log p", "value", "TD residual", "advantage", "log-ratio"):
        assert name in line
    browser.run("document.querySelector('.rollout[open] .completion').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert "token 4 of" in browser.run("document.querySelector('.rollout[open] .readout').innerText")


def test_colours_filters_order_and_search(browser: Browser, report: Path) -> None:
    browser.resize(1240, 900)
    browser.open(report)
    paint = "[...document.querySelectorAll('.rollout[open] .t')].map((e) => getComputedStyle(e).backgroundColor).join()"
    first = browser.run(paint)
    change(browser, "colour", "surprise")
    assert browser.run(paint) != first
    every = shown(browser)
    assert every == 60
    change(browser, "verdict", "incorrect")
    verdicts = "[...document.querySelectorAll('.rollout')].filter((e) => !e.hidden).map((e) => e.dataset.verdict)"
    assert set(browser.run(verdicts)) == {"incorrect"}
    assert 0 < shown(browser) < every
    change(browser, "problem", "p3")
    ids = verdicts.replace("verdict", "problem")
    assert set(browser.run(ids)) <= {"p3"}
    change(browser, "problem", "")
    change(browser, "search", "no such text")
    assert shown(browser) == 0
    assert not browser.run("document.getElementById('none').hidden")
    change(browser, "verdict", "")
    change(browser, "search", "boxed")
    assert 0 < shown(browser) < every, "those without an answer hold no box"
    change(browser, "search", "")
    browser.click(*browser.centre("#truncated"))
    assert 0 < shown(browser) < every
    change(browser, "order", "long")
    count = "[...document.querySelectorAll('.rollout')].map((e) => e.querySelector('.completion').textContent.length)"
    assert len(browser.run(count)) == every
    browser.click(*browser.centre(".rollout:not([open]):not([hidden]) summary"))
    assert browser.run("document.querySelectorAll('.rollout[open]').length") == 3


def test_hostile_completions_execute_nothing(browser: Browser, report: Path) -> None:
    source = random.Random(0)
    originals = [view(i, source) for i in range(6)]
    hostile = [
        msgspec.structs.replace(
            v, question=HOSTILE[1], prompt=HOSTILE, completion=[HOSTILE[i % 4] for i in range(len(v.completion))]
        )
        for v in originals
    ]
    run = report.parent.parent / "hostile"
    run.mkdir()
    write_views(run, hostile)
    browser.open(write_report(run))
    browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true })")
    browser.hover(*browser.centre(".rollout .t"))
    assert browser.run("window.owned") is None
    assert (
        browser.run("document.querySelectorAll('.rollout img, .rollout b:not(.readout b), #list script').length") == 0
    )
    assert HOSTILE[0] in browser.run("document.querySelector('.rollout .completion').textContent")
    assert problems(browser) == []


def test_page_of_fifty_thousand_tokens_is_responsive(browser: Browser, tmp_path: Path) -> None:
    source = random.Random(0)
    views = [view(i, source, completion=[f" tok{j % 97}" for j in range(1000)]) for i in range(50)]
    write_views(tmp_path, views)
    path = write_report(tmp_path, num_rollouts=50)
    assert path.stat().st_size < 8e6
    assert quickest(browser, path) < 2.0
    assert shown(browser) == 50
    assert problems(browser) == []


def test_mathematics_is_rendered_and_regressions_unfold(browser: Browser, report: Path) -> None:
    browser.resize(1240, 900)
    browser.open(report)
    browser.run("document.querySelectorAll('.regression').forEach((e) => { e.open = true })")
    tall = "[...document.querySelectorAll('#regressions math')].map((e) => e.getBoundingClientRect().height)"
    heights = browser.run(tall)
    assert len(heights) == 2
    assert all(height > 8 for height in heights)
    fraction = "(() => { const [a, b] = document.querySelector('mfrac').children; return "
    fraction += "b.getBoundingClientRect().top >= a.getBoundingClientRect().bottom - 2 })()"
    assert browser.run(fraction), "one above the other"
    assert problems(browser) == []
