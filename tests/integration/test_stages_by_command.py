"""Each stage as a command on the artefacts of the previous ones, and mistakes as one line with exit code 2."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_runs import TINY, tiny_config

from mathppo.cli import main
from mathppo.pipeline.run_directory import RunDirectory, check_run
from mathppo.pipeline.stages import prepare
from mathppo.storage import store

SETTINGS = [f"--{key}={value}" for key, value in TINY]


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the artefacts of every stage, one command at a time."""
    at = tmp_path_factory.mktemp("stages")
    assert run("prepare", "--out", at / "problems", *SETTINGS) == 0
    assert run("warmstart", "--problems", at / "problems" / "train", "--out", at / "warm", *SETTINGS) == 0
    given = ("--problems", at / "problems" / "train")
    assert run("generate", "--checkpoint", at / "warm", *given, "--out", at / "rollouts", *SETTINGS) == 0
    assert run("grade", "--rollouts", at / "rollouts", *given, "--out", at / "scored", *SETTINGS) == 0
    learn = ("learn", "--checkpoint", at / "warm", "--scored", at / "scored")
    assert run(*learn, "--critic-rollouts", at / "scored", "--out", at / "next", *SETTINGS) == 0
    assert run("evaluate", at / "next", "--out", at / "evaluation", *SETTINGS) == 0
    return at


def test_commands_write_the_documented_artefacts(made: Path) -> None:
    assert store.read_header(made / "problems" / "train", store.PROBLEMS).count == 64
    assert store.read_header(made / "problems" / "held_out", store.PROBLEMS).count == 2000
    assert store.read_header(made / "rollouts", store.ROLLOUTS).count == 8
    assert store.read_header(made / "scored", store.SCORED).count == 8
    assert json.loads((made / "next" / "checkpoint.json").read_text())["step"] == 1
    assert json.loads((made / "evaluation" / "greedy.json").read_text())["policy_step"] == 1


def test_finished_stage_is_not_repeated(made: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (made / "rollouts").iterdir()}
    given = ("--problems", made / "problems" / "train")
    assert run("generate", "--checkpoint", made / "warm", *given, "--out", made / "rollouts", *SETTINGS) == 0
    assert {p: p.stat().st_mtime_ns for p in (made / "rollouts").iterdir()} == before


def test_next_iteration_starts_from_the_next_checkpoint(made: Path, tmp_path: Path) -> None:
    given = ("--problems", made / "problems" / "train")
    assert run("generate", "--checkpoint", made / "next", *given, "--out", tmp_path / "rollouts", *SETTINGS) == 0
    first = store.read_artefact(made / "rollouts", store.ROLLOUTS)
    second = store.read_artefact(tmp_path / "rollouts", store.ROLLOUTS)
    assert {r.policy_step for r in first} == {0}
    assert {r.policy_step for r in second} == {1}
    assert {r.seed for r in first}.isdisjoint(r.seed for r in second)


def test_learn_prints_each_metric_with_its_unit(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learn = ("learn", "--checkpoint", made / "warm", "--scored", made / "scored", "--out", tmp_path / "next")
    assert run(*learn, *SETTINGS) == 0
    rows = {row[0]: row[1:] for row in map(str.split, capsys.readouterr().out.splitlines())}
    assert len(rows["policy_loss"]) == 1
    assert rows["entropy"][1:] == ["nats"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "expected at least one"),
        (['{"question": "Solve for x: x+1=2"}'], "answer"),
        (['{"question": "Solve for x: x+1=2", "answer": "1"}', "{broken"], "2"),
    ],
    ids=["empty", "a field is missing", "a broken line"],
)
def test_unusable_problem_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    assert run("prepare", "--out", tmp_path / "out", f"--problems.source={file}") == 2
    error = capsys.readouterr().err.strip()
    assert "mine.jsonl" in error
    assert message in error
    assert not (tmp_path / "out").exists()


def test_evaluate_reads_a_file_of_held_out_problems(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": f"Solve for x: x+{number}=2", "answer": str(2 - number)} for number in (1, 2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = f"--problems.held_out={file}"
    assert run("evaluate", made / "next", "--out", tmp_path / "evaluation", *SETTINGS, given) == 0
    assert "2 problems x 1" in capsys.readouterr().out
    assert run("evaluate", made / "next", "--out", tmp_path / "limited", "--limit", "1", *SETTINGS, given) == 0
    assert "1 problems x 1" in capsys.readouterr().out


def test_bad_setting_is_reported_by_the_first_rank_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert run("train", "--run-dir", tmp_path / "run", "--learner.lrr=1") == 2
        said.append(capsys.readouterr().err)
    assert "learner.lrr: unknown setting" in said[0]
    assert said[1] == ""


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.\nMore")])
def test_out_of_memory_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(prepare, "prepare", fail)
    assert run("prepare", "--out", tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mathppo: out of memory (")
    assert "lower generator.max_batch_size" in line


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--grader.name=no-such-grader", "grader 'no-such-grader'"),
        ("--problems.source=nowhere.jsonl", "nowhere.jsonl: expected a file"),
        ("--model.path=/no/where", "model.path: expected a Hugging Face model folder"),
        ("--generator.engine=vllm-http", "generator.url: expected an address"),
        ("--generator.engine=openai", "which takes no new weights"),
    ],
)
def test_mistake_found_by_preflight_does_not_fix_the_settings_of_the_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    assert run("train", "--run-dir", tmp_path / "run", *SETTINGS, setting) == 2
    assert message in capsys.readouterr().err
    check_run(RunDirectory(tmp_path / "run"), tiny_config())


@pytest.mark.parametrize(
    "command",
    [
        "warmstart --problems {at}/problems/train --out {out}",
        "learn --checkpoint {at}/warm --scored {at}/scored --out {out}",
        "generate --checkpoint {at}/warm --problems {at}/problems/train --out {out}",
        "grade --rollouts {at}/rollouts --problems {at}/problems/train --out {out}",
    ],
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_output_that_is_something_else_is_not_replaced(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, is_folder: bool
) -> None:
    out = tmp_path / "out"
    kept = out / "thesis.tex" if is_folder else out
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    arguments = [part.format(at=made, out=out) for part in command.split()]
    assert run(arguments[0], *SETTINGS, *arguments[1:]) == 2
    assert str(out) in capsys.readouterr().err
    assert kept.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("is_unfinished", [True, False])
def test_warm_start_of_other_settings_is_rejected(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_unfinished: bool
) -> None:
    shutil.copytree(made / "warm", tmp_path / ("warm.partial" if is_unfinished else "warm"))
    given = ("warmstart", "--problems", made / "problems" / "train", "--out", tmp_path / "warm", *SETTINGS)
    assert run(*given, "--run.seed=9") == 2
    assert "was made from other problems or settings; delete it, or choose another" in capsys.readouterr().err


def test_message_of_a_grader_is_shown_in_one_printable_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("class Loud:", '    name = "loud"', "    def grade(self, completion, reference, *, question=None):")
    raising = '        raise ValueError("a\\n\\x1b[31mb" * 1000)'
    (tmp_path / "loud.py").write_text("\n".join([*lines, raising, "GRADER = Loud()", ""]))
    given = ("--rollouts", made / "rollouts", "--problems", made / "problems" / "train", "--out", tmp_path / "scored")
    assert run("grade", *given, *SETTINGS, f"--grader.name={tmp_path}/loud.py:GRADER") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "the grader itself failed on 8 of 8 rollouts" in line
    assert line.isprintable()
    assert len(line) < 800


def test_prompt_that_does_not_fit_the_context_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"id": "long", "question": "Solve for x: " + "x+" * 80 + "1=2", "answer": "1"}) + "\n")
    assert run("prepare", "--out", tmp_path / "problems", f"--problems.source={file}") == 0
    capsys.readouterr()
    given = ("--problems", tmp_path / "problems" / "train", "--out", tmp_path / "rollouts")
    assert (
        run(
            "generate",
            "--checkpoint",
            made / "warm",
            *given,
            "--generator.prompts_per_iteration=1",
            "--learner.minibatches=1",
        )
        == 2
    )
    error = capsys.readouterr().err.strip()
    assert "long" in error
    assert "128" in error


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "generate --checkpoint {at}/nowhere --problems {at}/problems/train --out {out}",
            "nowhere: expected a checkpoint folder with config.json, found none",
        ),
        (
            "generate --checkpoint {at}/warm --problems {at}/rollouts --out {out}",
            "rollouts: expected problems, found rollouts; give the folder of the right stage",
        ),
        (
            "generate --checkpoint {at}/warm --problems {at}/problems/train --out {at}/rollouts --run.seed=9",
            "rollouts: was made from other inputs or settings; delete it, or choose another output folder",
        ),
        (
            "generate --checkpoint {at}/warm --problems {at}/problems/train --out {out} --generator.max_new_tokens=0",
            "generator.max_new_tokens: expected int >= 1, got 0",
        ),
        (
            "grade --rollouts {at}/nowhere --problems {at}/problems/train --out {out}",
            "nowhere: expected a folder with rollouts, found none",
        ),
        (
            "grade --rollouts {at}/rollouts --problems {at}/problems/held_out --out {out}",
            "give grade the problems that generate was given",
        ),
        (
            "grade --rollouts {at}/rollouts --problems {at}/problems/train --out {out} --grader.name=no-such-grader",
            "no-such-grader",
        ),
        (
            "learn --checkpoint {at}/next --scored {at}/scored --out {out} --learner.stale_anchor=old",
            'expected rollouts of step 1 only while learner.stale_anchor is "old", got those of [0]',
        ),
        (
            "learn --checkpoint {at}/warm --scored {at}/scored --out {at}/next",
            "next: expected no checkpoint yet, found one",
        ),
        ("evaluate {at}/next --out {out} --problems.held_out=no-such-set", "no-such-set"),
        ("evaluate {at}/next --out {out} --limit=-3", "--limit: expected a number of problems"),
        ("evaluate {at}/next --out {out} --templates boxed", "only together with --benchmarks"),
        ("prepare --out {out} --problems.source={out}.jsonl", ".jsonl"),
        ("train --run-dir {out} --learner.lrr=1", "learner.lrr: unknown setting; did you mean learner.lr?"),
        ("train --run-dir {out} --config {at}/none.toml", "none.toml"),
        ("train --run-dir {out} --config no-such-recipe", "or one of the recipes"),
        ("train --run-dir {out} extra", "extra: unknown argument"),
        ("report {at}/nowhere", "nowhere"),
        ("report {at}/run --control {at}/nowhere", "nowhere: expected a run directory, found no config.toml in it"),
    ],
)
def test_mistake_is_one_line_that_names_it_and_writes_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    out = tmp_path / "out"
    arguments = [part.format(at=made, out=out) for part in command.split()]
    (made / "run").mkdir(exist_ok=True)
    (made / "run" / "config.toml").touch()
    settings = [] if arguments[0] == "report" else SETTINGS
    code = run(arguments[0], *settings, *arguments[1:])
    error = capsys.readouterr().err.strip()
    assert code == 2
    assert message.format(at=made, out=out) in error
    assert error.count("\n") == 0
    assert "Traceback" not in error
    assert not out.exists()
