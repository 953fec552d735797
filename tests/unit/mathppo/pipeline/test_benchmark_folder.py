"""Keys in the log of verdicts."""

from pathlib import Path

import msgspec
import pytest

from mathppo.config import GraderSettings
from mathppo.pipeline import benchmark_folder
from mathppo.pipeline.benchmark_folder import grader_identity, verdict_key
from mathppo.records import Problem


def test_verdict_key_depends_on_everything_that_affects_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "grader.py"
    file.write_text("first")
    settings = GraderSettings(name=f"{file}:G", time_limit_s=2.0)
    problem = Problem(id="p", question="?", reference="1")
    grader = grader_identity(settings)
    keys = [
        verdict_key("s", grader, problem),
        verdict_key("t", grader, problem),
        verdict_key("s", grader, msgspec.structs.replace(problem, reference="2")),
        verdict_key("s", grader, msgspec.structs.replace(problem, question="!")),
    ]
    for changes in ({"name": "math"}, {"time_limit_s": 1.0}, {"memory_limit_bytes": 1 << 29}):
        keys.append(verdict_key("s", grader_identity(msgspec.structs.replace(settings, **changes)), problem))
    file.write_text("second")
    keys.append(verdict_key("s", grader_identity(settings), problem))
    monkeypatch.setattr(benchmark_folder, "versions", lambda: {"mathppo": "another"})
    keys.append(verdict_key("s", grader_identity(settings), problem))
    assert len(set(keys)) == len(keys) == 9
    assert verdict_key("s", grader, msgspec.structs.replace(problem, id="q")) == keys[0]
