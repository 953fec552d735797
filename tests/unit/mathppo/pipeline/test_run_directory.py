"""Run directory: one run with fixed settings, one process at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graders import GraderPool
from graders.sandbox_status import sandbox_status
from mathppo.config import Config, load_config
from mathppo.errors import BadArtefact, BadSetting
from mathppo.pipeline.run_directory import RunDirectory, check_run, open_run

CONFIG = load_config(None, [("run.seed", "3")])
OTHER = load_config(None, [("run.seed", "4")])


def begun(root: Path, config: Config = CONFIG) -> RunDirectory:
    run = RunDirectory(root)
    with open_run(run, config):
        pass
    return run


def test_resumed_run_keeps_its_manifest_and_settings(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.warmstart.mkdir()
    before = run.manifest.stat().st_mtime_ns
    begun(run.root)
    assert run.manifest.stat().st_mtime_ns == before
    assert load_config(run.config) == CONFIG


def test_manifest_records_the_isolation_of_the_grader(tmp_path: Path) -> None:
    with GraderPool("exact", num_workers=1) as pool:
        sandbox = sandbox_status(pool)
    with open_run(RunDirectory(tmp_path / "run"), CONFIG, sandbox):
        written = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert written["grader_sandbox"]["name"] == "exact"
    layers = {layer["name"]: layer["state"] for layer in written["grader_sandbox"]["layers"]}
    assert layers == {layer.name: layer.state for layer in sandbox.layers}
    assert {"namespaces", "seccomp", "landlock", "rlimits"} <= set(layers)


def test_run_with_artefacts_rejects_other_settings(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.warmstart.mkdir()
    with pytest.raises(BadSetting, match=r"other settings \(run\.seed is 3 there and 4 now\); choose another"):
        check_run(run, OTHER)


def test_run_without_artefacts_accepts_other_settings(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.wall_time.write_text("{}")
    (run.root / ".config.toml.7.tmp").write_text("torn by a kill")
    begun(run.root, OTHER)
    assert load_config(run.config) == OTHER


@pytest.mark.parametrize("name", ["config.toml", "thesis.tex"])
def test_folder_with_other_files_is_not_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(BadSetting, match=r"expected an empty or missing folder|holds a run with other settings"):
        begun(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "")]


def test_file_is_rejected_as_a_run_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(BadSetting, match="run: expected a folder, got a file; choose another --run-dir"):
        check_run(RunDirectory(tmp_path / "run"), CONFIG)


def test_second_process_is_locked_out_until_the_first_ends(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from mathppo.pipeline.run_directory import RunDirectory, open_run\n"
        "from mathppo.config import load_config\n"
        "with open_run(RunDirectory(pathlib.Path(sys.argv[1])), load_config(None, [('run.seed', '3')])):\n"
        "    print('in', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        with pytest.raises(BadArtefact, match="run: another process is at work in it; wait for it or end it"):
            begun(tmp_path / "run")
        first.kill()
    begun(tmp_path / "run")
