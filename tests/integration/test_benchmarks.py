"""`mathppo evaluate --benchmarks`, `compare` and `score` on a tiny model: logs, kills, caches, flips."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai_server
import pytest
from tiny_runs import tiny_config

from graders import GraderPool
from mathppo.cli import main
from mathppo.config import ModelSettings
from mathppo.errors import BadArtefact, BadInput, StageFailed
from mathppo.evaluate.benchmarks import Benchmark, find_card, load_benchmark
from mathppo.evaluate.outcomes import answer_classes
from mathppo.evaluate.samples import SAMPLES
from mathppo.generator.base import Request, Sampling
from mathppo.learner.backend import models
from mathppo.pipeline import benchmark_folder
from mathppo.pipeline.benchmark_folder import read_results
from mathppo.pipeline.stages.evaluate import Policy, evaluate_benchmark
from mathppo.pipeline.stages.rescore import rescore
from mathppo.prompts import build_equation_tokenizer, special_ids
from mathppo.records import FinishReason, Problem, Rollout
from mathppo.storage.store import read_log

CONFIG = tiny_config(("generator.max_new_tokens", "8"))
PLAIN = "plain"


class Engine:
    """Answers by the sample's seed, counts requests, and can fail after some."""

    def __init__(self, fails_after: int = -1) -> None:
        self.asked = 0
        self.fails_after = fails_after

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        for request in reversed(requests):
            if self.asked == self.fails_after:
                raise KeyboardInterrupt
            self.asked += 1
            answer = ("x=4", "4", "7", "7.0", "5")[request.seed % 5] if sampling.temperature else "4"
            yield Rollout(
                problem_id=request.problem_id,
                sample_index=request.sample_index,
                prompt_ids=list(request.prompt_ids),
                completion_ids=[5, 6, 2],
                completion="" if request.seed % 11 == 0 else f"\\boxed{{{answer}}}",
                behaviour_logprobs=[-1.0] * 3,
                finish_reason=FinishReason.LENGTH if request.seed % 11 == 0 else FinishReason.STOP,
                policy_step=3,
                seed=request.seed,
            )

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(grader="math", num_workers=1) as pool:
        yield pool


@pytest.fixture
def bench() -> Benchmark:
    loaded = load_benchmark(find_card("linear"))
    problems = [Problem(id=f"q{i}", question=f"Solve for x: x+{i}={i + 4 + i % 2}", reference="4") for i in range(12)]
    return loaded._replace(problems=problems)


def policy(engine: Any, weights: str = "w" * 64) -> Policy:
    return Policy(engine, build_equation_tokenizer(), "tiny", weights, 3)


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.json"))}


def test_second_evaluation_reads_the_log_and_writes_the_same_bytes(
    tmp_path: Path, pool: GraderPool, bench: Benchmark
) -> None:
    engine = Engine()
    first = evaluate_benchmark(policy(engine), pool, bench, 4, PLAIN, CONFIG, tmp_path)
    assert engine.asked == 48
    before = files(tmp_path)
    assert evaluate_benchmark(policy(engine), pool, bench, 4, PLAIN, CONFIG, tmp_path) == first
    assert engine.asked == 48, "nothing was sampled again"
    assert files(tmp_path) == before
    row = first.evaluation.overall
    assert row.num_samples == 48
    assert set(row.pass_at_k) == {1, 2, 3, 4}
    assert row.majority_at_k[1] == pytest.approx(row.pass_at_k[1])
    assert first.first_prompt is not None
    assert first.first_prompt.text == "<bos>Solve for x: x+0=4\n"


def test_further_samples_are_appended(tmp_path: Path, pool: GraderPool, bench: Benchmark) -> None:
    engine = Engine()
    evaluate_benchmark(policy(engine), pool, bench, 2, PLAIN, CONFIG, tmp_path)
    logged = list(read_log(tmp_path / "samples.jsonl", SAMPLES))
    evaluate_benchmark(policy(engine), pool, bench, 4, PLAIN, CONFIG, tmp_path)
    grown = list(read_log(tmp_path / "samples.jsonl", SAMPLES))
    assert grown[: len(logged)] == logged
    assert len(grown) == len({sample.key for sample in grown}) == 48


def test_other_weights_prompts_or_seeds_find_no_old_entry(tmp_path: Path, pool: GraderPool, bench: Benchmark) -> None:
    engine = Engine()
    for number, (weights, template, seed) in enumerate(
        [("a" * 64, "plain", 0), ("b" * 64, "plain", 0), ("a" * 64, "none", 0), ("a" * 64, "plain", 1)], start=1
    ):
        config = tiny_config(("generator.max_new_tokens", "8"), ("run.seed", str(seed)))
        evaluate_benchmark(policy(engine, weights), pool, bench, 1, template, config, tmp_path)
        assert engine.asked == 12 * number


def test_more_samples_than_fit_in_memory_are_rejected_before_sampling(
    tmp_path: Path, pool: GraderPool, bench: Benchmark
) -> None:
    engine = Engine()
    with pytest.raises(
        BadInput, match=r"linear: expected .* got 12 problems x 1,000,000,000 = 12,000,000,000; ask for"
    ):
        evaluate_benchmark(policy(engine), pool, bench, 10**9, PLAIN, CONFIG, tmp_path)
    assert engine.asked == 0


def test_interrupted_evaluation_is_completed_to_the_same_result(
    tmp_path: Path, pool: GraderPool, bench: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_folder, "SAMPLED_AT_ONCE", 10)
    whole = evaluate_benchmark(policy(Engine()), pool, bench, 4, PLAIN, CONFIG, tmp_path / "whole")
    out, engine = tmp_path / "torn", Engine(fails_after=27)
    with pytest.raises(KeyboardInterrupt):
        evaluate_benchmark(policy(engine), pool, bench, 4, PLAIN, CONFIG, out)
    assert len(list(read_log(out / "samples.jsonl", SAMPLES))) == 20, "whole portions are kept"
    with open(out / "samples.jsonl", "r+b") as log:
        log.truncate(os.path.getsize(out / "samples.jsonl") - 40)
    engine = Engine()
    assert evaluate_benchmark(policy(engine), pool, bench, 4, PLAIN, CONFIG, out) == whole
    assert engine.asked == 38, "the incomplete portion was drawn again as a whole, for the same batches"
    for name in ("samples.jsonl",):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_wrong_answers_are_grouped_by_the_grader(pool: GraderPool) -> None:
    problems = {"p": Problem(id="p", question="?", reference="4")}
    classes = answer_classes(pool, {"p": ["7", "7.0", " 5", "14/2", "5", "x"]}, problems)["p"]
    assert classes["7"] == classes["7.0"] == classes["14/2"]
    assert len({classes["7"], classes["5"], classes["x"]}) == 3


def test_score_lists_every_flip_and_keeps_the_results(tmp_path: Path, pool: GraderPool, bench: Benchmark) -> None:
    evaluate_benchmark(policy(Engine()), pool, bench, 4, PLAIN, CONFIG, tmp_path)
    before = files(tmp_path)
    report, results = rescore(tmp_path, tiny_config(("grader.name", "exact")).grader)
    assert files(tmp_path).items() >= before.items()
    assert (report.before, report.after, report.num_samples) == ("math", "exact", 48)
    lost = [flip for flip in report.flips if flip.before == "correct"]
    assert {flip.answer_before for flip in lost} == {"x=4"}, "only the math grader accepts x=4 as 4"
    assert report.num_correct_before - report.num_correct_after == len(lost) > 0
    assert results[0].grader == "exact"
    again, _ = rescore(tmp_path / "samples.jsonl", tiny_config().grader, tiny_config(("grader.name", "exact")).grader)
    assert len(again.flips) == len(report.flips)


def test_log_that_lacks_samples_is_rejected(tmp_path: Path, pool: GraderPool, bench: Benchmark) -> None:
    with pytest.raises(BadArtefact, match=r"expected results of evaluate, found none; .* with --benchmarks"):
        rescore(tmp_path, CONFIG.grader)
    evaluate_benchmark(policy(Engine()), pool, bench, 1, PLAIN, CONFIG, tmp_path)
    (tmp_path / "samples.jsonl").write_bytes(b"")
    with pytest.raises(BadArtefact, match=r"expected 12 samples of linear\.plain\.greedy, got 0; run evaluate again"):
        rescore(tmp_path, CONFIG.grader)


def test_grader_that_fails_too_often_stops_the_evaluation(tmp_path: Path, bench: Benchmark) -> None:
    grader = tmp_path / "broken.py"
    grader.write_text(
        "class G:\n    name = 'broken'\n    def grade(self, completion, reference, *, question=None):\n        1 / 0\n"
        "g = G()\n"
    )
    config = tiny_config(("generator.max_new_tokens", "8"), ("grader.name", f"{grader}:g"))
    with (
        GraderPool(grader=f"{grader}:g", num_workers=1) as pool,
        pytest.raises(StageFailed, match="the grader itself failed on 12 of 12 samples, more than"),
    ):
        evaluate_benchmark(policy(Engine()), pool, bench, 1, PLAIN, config, tmp_path / "out")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write two tiny policies with different weights and the equation tokenizer."""
    tokenizer = build_equation_tokenizer()
    ids = special_ids(tokenizer)
    assert ids.bos is not None
    shape = ModelSettings(hidden_size=32, num_layers=1, num_heads=1, intermediate_size=32, initializer_range=0.3)
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("policies") / f"policy{seed}"
        model = models.build_policy(
            shape, vocab_size=len(tokenizer), bos_id=ids.bos, eos_id=ids.eos, pad_id=ids.pad, seed=seed
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders.append(folder)
    return folders


OPTIONS = ("--limit=40", "--generator.max_new_tokens=6", "--grader.num_workers=1", "--run.num_threads=1")


def test_evaluate_compare_and_score_commands(
    checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["evaluate", *map(str, checkpoints), "--benchmarks=linear,quadratic:2", f"--out={out}", *OPTIONS]
    assert main([*arguments, "--templates=plain,none"]) == 0
    said = capsys.readouterr()
    assert "linear-first40.plain.greedy" in said.out
    assert "over 2 prompts" in said.out
    assert "first prompt:\n<bos>Solve for x:" in said.err
    assert len((out / "table.md").read_text().splitlines()) == 2 + 2 * 2 * 2
    folders = sorted((out / "results").iterdir())
    assert len(folders) == 2
    assert main(["compare", *map(str, folders), f"--out={tmp_path / 'comparison.json'}"]) == 0
    assert "do not differ significantly on linear-first40.plain.greedy (40 problems)" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "comparison.json").read_text())["sets"]) == 4
    assert main(["score", str(out), "--grader=exact", "--grader.num_workers=1"]) == 0
    assert "samples: " in capsys.readouterr().out
    assert main(["compare", str(folders[0])]) == 2
    assert "expected at least two folders, got 1" in capsys.readouterr().err
    assert main(["compare", str(out), str(folders[0])]) == 2
    assert "one result of linear-first40.none.greedy per folder" in capsys.readouterr().err


def test_templates_all_reports_those_left_out(
    checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(checkpoints[0]), "--benchmarks=linear", f"--out={tmp_path}", *OPTIONS]
    assert main([*arguments, "--templates=all"]) == 0
    assert "template chat_boxed left out: " in capsys.readouterr().err
    assert {result.template for result in read_results(tmp_path)} == {"plain", "none"}


def test_killed_evaluation_is_completed_to_the_same_bytes(checkpoints: list[Path], tmp_path: Path) -> None:
    arguments = ["evaluate", str(checkpoints[0]), "--benchmarks=linear:16", "--limit=400"]
    arguments += ["--generator.max_new_tokens=6", "--grader.num_workers=1", "--run.num_threads=1"]
    assert main([*arguments, f"--out={tmp_path / 'whole'}"]) == 0
    torn = tmp_path / "torn"
    command = [sys.executable, "-m", "mathppo.cli", *arguments, f"--out={torn}"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not ((torn / "samples.jsonl").exists() and (torn / "samples.jsonl").stat().st_size > 0):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert main([*arguments, f"--out={torn}"]) == 0
    for pattern in ("samples.jsonl", "table.md", "table.csv", "results/*/*.json"):
        for path in (tmp_path / "whole").glob(pattern):
            assert (torn / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes(), path.name


def test_killed_evaluation_of_a_served_model_is_completed_to_the_same_bytes(tmp_path: Path) -> None:
    """The folder has a tokenizer only; the server fails, is busy and slow, and the evaluation is killed."""
    build_equation_tokenizer().save_pretrained(tmp_path / "tokenizer")
    arguments = ["evaluate", str(tmp_path / "tokenizer"), "--benchmarks=linear:4", "--limit=300", "--run.num_threads=1"]
    arguments += ["--generator.engine=openai", "--generator.max_new_tokens=6", "--grader.num_workers=1"]
    with openai_server.serve() as fake:
        arguments += [f"--generator.url={fake.url}", "--generator.max_batch_size=8"]
        fake.failures, fake.busy = 2, 5
        assert main([*arguments, f"--out={tmp_path / 'whole'}"]) == 0
        asked = len(fake.asked)
        assert asked == 1200
        fake.pause_s, torn = 0.004, tmp_path / "torn"
        child = subprocess.Popen(
            [sys.executable, "-m", "mathppo.cli", *arguments, f"--out={torn}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while len(fake.asked) < asked + 700:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert len(list(read_log(torn / "samples.jsonl", SAMPLES))) == benchmark_folder.SAMPLED_AT_ONCE
        fake.pause_s = 0
        assert main([*arguments, f"--out={torn}"]) == 0
    for pattern in ("samples.jsonl", "table.md", "results/*/*.json"):
        for path in (tmp_path / "whole").glob(pattern):
            assert (torn / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes(), path.name
    (result,) = read_results(torn / "results")
    assert result.model == "policy"


def test_export_writes_the_formats_of_other_harnesses(
    checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["evaluate", str(checkpoints[0]), "--benchmarks=linear:2", f"--out={out}", *OPTIONS]) == 0
    for name in ("lm-eval", "lighteval"):
        arguments = ["export", str(out), f"--format={name}", f"--out={tmp_path / name}", "--grader.num_workers=1"]
        capsys.readouterr()
        assert main(arguments) == 0
        paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert paths
        assert all(path.is_file() for path in paths)
    (samples,) = (tmp_path / "lm-eval").rglob("samples_linear-first40_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == 40
    assert lines[0]["arguments"]["gen_args_0"]["arg_0"].startswith("<bos>Solve for x: ")
    (details,) = (tmp_path / "lighteval" / "details").glob("*/*/details_linear-first40|0_*.parquet")
    from datasets import Dataset

    rows = Dataset.from_parquet(str(details), cache_dir=str(tmp_path / "cache")).to_list()
    assert [set(row) for row in rows] == [{"doc", "model_response", "metric"}] * 40
    assert [row["model_response"]["text"] for row in rows] == [line["resps"][0] for line in lines]
    assert [row["metric"]["extractive_match"] for row in rows] == [line["exact_match"] for line in lines]
    first = rows[0]["doc"]
    assert (first["task_name"], first["num_samples"], first["gold_index"]) == ("linear-first40|0", 2, [0])
    assert first["query"] == rows[0]["model_response"]["input"] == lines[0]["arguments"]["gen_args_0"]["arg_0"]
    (results,) = (tmp_path / "lm-eval").rglob("results_*.json")
    mean = sum(line["exact_match"] for line in lines) / 40
    assert json.loads(results.read_text())["results"]["linear-first40"]["exact_match,none"] == pytest.approx(mean)
