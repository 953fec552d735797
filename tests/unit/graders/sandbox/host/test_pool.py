"""Grader pool: order of verdicts, deadlines, limits, failures and invalid arguments."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graders import BadGrader, BadInput, GraderError, GraderPool, SandboxUnavailable, Status, UnknownGrader

LIMIT_S = 0.4


@pytest.fixture(params=["Mischief", "SemiTrusted", "Split"], scope="module")
def pool(mischief_file: Path, request: pytest.FixtureRequest) -> Iterator[GraderPool]:
    with GraderPool(f"{mischief_file}:{request.param}", num_workers=2, time_limit_s=LIMIT_S) as pool:
        yield pool


def test_verdicts_come_in_input_order(pool: GraderPool) -> None:
    items = [(str(k % 7), "3") for k in range(300)]
    assert [verdict.correct for verdict in pool.grade(items)] == [k % 7 == 3 for k in range(300)]


def test_stream_yields_every_index_once(pool: GraderPool) -> None:
    pairs = list(pool.stream([(str(k), "5") for k in range(100)]))
    assert sorted(index for index, _ in pairs) == list(range(100))
    assert [index for index, verdict in pairs if verdict.correct] == [5]


@pytest.mark.parametrize("action", ["power", "sum", "sleep"])
def test_hang_is_over_budget_at_the_limit_and_affects_no_other_item(pool: GraderPool, action: str) -> None:
    delays = pool.counts.get("delays", 0)
    begin = time.perf_counter()
    verdicts = pool.grade([("1", "1"), (action, "1"), ("2", "1"), ("1", "1")])
    took_s = time.perf_counter() - begin
    # on a busy machine, the deadline is extended by the time spent waiting for a processor
    assert took_s < LIMIT_S + 0.25 + (9 * LIMIT_S if pool.counts.get("delays", 0) > delays else 0)
    assert [v.status for v in verdicts] == ["correct", "over_budget", "incorrect", "correct"]
    assert verdicts[1].method == "deadline"
    assert verdicts[1].detail == f"not done within {LIMIT_S:g} s"


@pytest.mark.parametrize(
    ("action", "method"),
    [("memory", "memory"), ("recursion", "recursion"), ("digits", "digits"), ("numeral", "digits")],
)
def test_exhausted_memory_stack_or_digits_are_over_budget(pool: GraderPool, action: str, method: str) -> None:
    verdicts = pool.grade([(action, "1"), ("1", "1")])
    assert (verdicts[0].status, verdicts[0].method) == (Status.OVER_BUDGET, method)
    assert verdicts[1].correct


@pytest.mark.parametrize(
    ("action", "method", "detail"),
    [
        ("raise", "exception", "ValueError: planted"),
        ("raise_exit", "exception", "SystemExit: 0"),
        ("none", "exception", "expected a graders.Verdict, got NoneType None"),
        ("nan", "exception", "ValueError: verdict: expected a finite duration_s"),
        ("types", "exception", "status is one of graders.Status, such as Status.INCORRECT, got str 'right'"),
        ("exit", "crash", "exit code 0"),
    ],
)
def test_failure_of_the_grader_is_an_error(pool: GraderPool, action: str, method: str, detail: str) -> None:
    verdicts = pool.grade([("1", "1"), (action, action), ("1", "1")])
    assert (verdicts[1].status, verdicts[1].method) == (Status.ERROR, method)
    assert detail in verdicts[1].detail
    assert verdicts[0].correct
    assert verdicts[2].correct


def test_long_texts_are_cut_and_very_long_ones_are_an_error(pool: GraderPool) -> None:
    wordy, endless = pool.grade([("wordy", "1"), ("flood", "1")])
    assert wordy.answer is not None
    assert [len(text) for text in (wordy.answer, wordy.method, wordy.detail)] == [4096, 40, 500]
    assert endless.status is Status.ERROR
    assert "expected a verdict whose answer has at most 1048576 characters, got str of 10000000" in endless.detail


def test_threads_and_asyncio_share_a_pool(pool: GraderPool) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda k: pool.grade([(str(k), "2")] * 5), range(8)))
    assert [all(v.correct for v in verdicts) for verdicts in results] == [k == 2 for k in range(8)]

    async def both() -> tuple[list, list]:
        streamed = [pair async for pair in pool.stream_async([("1", "1"), ("2", "1")])]
        return await pool.grade_async([("1", "1")]), streamed

    graded, streamed = asyncio.run(both())
    assert graded[0].correct
    assert sorted((index, v.status.value) for index, v in streamed) == [(0, "correct"), (1, "incorrect")]


def test_time_in_the_queue_is_not_counted(pool: GraderPool) -> None:
    slow = threading.Thread(target=pool.grade, args=([("sleep", "1")] * 4,))
    slow.start()
    verdicts = pool.grade([("1", "1")] * 4)
    slow.join()
    assert all(verdict.correct for verdict in verdicts)


def test_leaving_a_stream_early_cancels_the_rest(pool: GraderPool) -> None:
    for _, verdict in pool.stream([("1", "1")] * 200):
        assert verdict.correct
        break
    assert pool.grade([("1", "1")])[0].correct


def test_surrogates_are_replaced_and_large_texts_are_over_budget(pool: GraderPool) -> None:
    verdicts = pool.grade([("\ud800", "1"), ("1", "1"), ("x" * (1 << 20), "1"), ("", "")])
    assert [v.status.value for v in verdicts] == ["incorrect", "correct", "over_budget", "correct"]
    assert verdicts[2].method == "size"


def test_failing_halves_of_a_split_grader(mischief_file: Path) -> None:
    with GraderPool(f"{mischief_file}:Split", time_limit_s=LIMIT_S) as pool:
        verdicts = pool.grade([("read_sleep", "1"), ("read_raise", "1"), ("read_memory", "1"), ("1", "1")])
        assert [(v.status.value, v.method) for v in verdicts] == [
            ("over_budget", "deadline"),
            ("error", "exception"),
            ("over_budget", "memory"),
            ("correct", "exact"),
        ]
        forged = pool.grade([("read_none", "1")])[0]
        assert (forged.status, forged.method) == (Status.ERROR, "reading")


def test_the_limit_covers_reading_and_judging_together(mischief_file: Path) -> None:
    with GraderPool(f"{mischief_file}:Split", num_workers=1, time_limit_s=1.0) as pool:
        begin = time.perf_counter()
        verdict = pool.grade([("nap_sleep", "1")])[0]  # reads for 0.45 s, then never stops judging
        assert time.perf_counter() - begin < 1.25
    assert (verdict.status, verdict.method) == (Status.OVER_BUDGET, "deadline")


def test_counts_of_verdicts_and_events(mischief_file: Path) -> None:
    with GraderPool(f"{mischief_file}:Mischief", time_limit_s=LIMIT_S) as pool:
        pool.grade([("sleep", "1"), ("raise", "1"), ("1", "1"), ("exit", "1")])
        counts = pool.counts
    assert {key: counts[key] for key in ("over_budget", "error", "correct", "kills")} == {
        "over_budget": 1,
        "error": 2,
        "correct": 1,
        "kills": 1,
    }
    assert counts["crashes"] == 2  # a task that crashes is retried once, alone


def test_closed_pool_fails_unfinished_work_and_can_start_again(mischief_file: Path) -> None:
    pool = GraderPool(f"{mischief_file}:Mischief", time_limit_s=60)
    future = pool.submit([("sleep", "1")])
    pool.close()
    with pytest.raises(GraderError, match="expected an open pool, got a closed one"):
        future.result()
    assert pool.grade([("1", "1")])[0].correct
    pool.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 0}, "num_workers from 1 to 256"),
        ({"num_workers": 257}, "num_workers from 1 to 256"),
        ({"time_limit_s": 0}, "time_limit_s > 0"),
        ({"memory_limit_bytes": 1}, "64 MiB"),
    ],
)
def test_bad_settings_are_rejected(settings: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        GraderPool(**settings)


@pytest.mark.parametrize(
    "item",
    [
        *("text", b"ab", None, 3, {"completion": "a", "reference": "b"}, {"a", "b"}, (c for c in "ab")),
        *(("a",), ("a", "b", "c", "d"), (1, "b"), ("a", "b", 3), ("a", None), (b"a", "b")),
    ],
)
def test_bad_item_is_named(mischief_file: Path, item: object) -> None:
    with pytest.raises(BadInput, match="item 1: expected"):
        GraderPool(f"{mischief_file}:Mischief").grade([("1", "1"), item])  # type: ignore[list-item]


def test_str_subclasses_are_accepted(pool: GraderPool) -> None:
    class Text(str):
        __slots__ = ()

    items = [(np.str_("1"), np.str_("1")), [Text("2"), Text("1"), Text("why?")], (Status.CORRECT, "correct")]
    assert [verdict.correct for verdict in pool.grade(items)] == [True, False, True]


def test_empty_input_returns_no_verdicts(mischief_file: Path) -> None:
    assert GraderPool(f"{mischief_file}:Mischief").grade([]) == []


def test_unknown_and_broken_graders_raise_the_matching_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "nameless.py").write_text("class G:\n    def grade(self): ...")
    (tmp_path / "dies.py").write_text("import os; os._exit(7)")
    for spec, kind, message in [
        ("no such", UnknownGrader, "expected one of"),
        (f"{tmp_path}/missing.py:G", UnknownGrader, "expected an existing Python file"),
        (f"{tmp_path}/nameless.py:H", UnknownGrader, "found no such attribute"),
        (f"{tmp_path}/nameless.py:G", BadGrader, "without one"),
        (f"{tmp_path}/broken.py:G", BadGrader, "ZeroDivisionError"),
        (f"{tmp_path}/dies.py:G", SandboxUnavailable, "exit code 7"),
    ]:
        with pytest.raises(kind, match=message):
            GraderPool(spec).grade([("1", "1")])


def test_missing_layer_is_an_error(mischief_file: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"expected the layers \['moat'\]"):
        GraderPool(f"{mischief_file}:Mischief", require=["moat"]).grade([("1", "1")])
