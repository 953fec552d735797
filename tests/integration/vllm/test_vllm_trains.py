"""Stages with vLLM: PPO from a warm start, then single commands on its run folder."""

from pathlib import Path

import pytest
from tiny_runs import TINY, tiny_config

from mathppo.cli import main
from mathppo.metrics import read_rows
from mathppo.pipeline.train import train
from mathppo.progress import SILENT
from mathppo.storage import store

VLLM = (
    ("generator.engine", "vllm"),
    ("generator.kv_cache_bytes", str(64 << 20)),
    ("generator.max_batch_size", "64"),
    ("run.iterations", "2"),
)


def test_ppo_trains_on_rollouts_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tiny_config(*VLLM, ("run.iterations", "2")), tmp_path / "run", SILENT)
    _, rows = read_rows(run.metrics)
    assert [row.iteration for row in rows] == [1, 2]
    for row in rows:
        assert float(row.metrics["probe_gap_max"]) < 1e-3  # type: ignore[arg-type]
        assert float(row.metrics["behaviour_logratio_max"]) < 1e-3  # type: ignore[arg-type]
        assert float(row.metrics["behaviour_ess_share"]) > 0.999  # type: ignore[arg-type]
        assert sum(row.metrics["behaviour_logratio_by_size"][:5]) == pytest.approx(1.0)  # type: ignore[index]
    assert "Sampler and learner" in (run.root / "report.html").read_text("utf-8")
    scored = store.read_scored(run.iteration(2) / "scored")
    assert len(scored) == 8
    assert {item.rollout.policy_step for item in scored} == {1}

    settings = [f"--{key}={value}" for key, value in (*TINY, *VLLM)]
    out, problems = tmp_path / "rollouts", run.train_problems
    command = ["generate", *settings, "--checkpoint", str(run.checkpoint(2)), "--problems", str(problems)]
    assert main([*command, "--out", str(out)]) == 0
    assert "8 rollouts of step 2" in capsys.readouterr().out
