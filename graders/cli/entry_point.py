"""The `graders` command line: its parser, and the dispatch to the command modules.

Exit codes: 0 success, 1 the command found a failure, 2 bad usage or input. Messages go to stderr, results to stdout.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from graders.cli.pool_options import BAD_USAGE, OK, add_pool_options
from graders.errors import GraderError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(argv)
    try:
        code = _run(options)
        sys.stdout.flush()  # raises here, not at exit, if the reader has closed the pipe
        return code
    except GraderError as error:
        print(f"graders {options.command}: {error}", file=sys.stderr)
        return BAD_USAGE
    except BrokenPipeError:  # the reader, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(options: argparse.Namespace) -> int:
    """Import and run a command; each imports only what it needs, so that `graders check` starts fast."""
    match options.command:
        case "grade":
            from graders.cli.grade_file import grade as run
        case "audit":
            from graders.cli.audit import audit as run
        case "label-audit":
            from graders.cli.audit import label_audit as run
        case "doctor":
            from graders.cli.doctor import doctor as run
        case "serve":
            from graders.cli.commands import serve as run
        case "conformance":
            from graders.cli.commands import conformance as run
        case _:
            from graders.cli.commands import check as run
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graders", description="Grade completions against references, in a sandbox.")
    commands = parser.add_subparsers(dest="command", required=True)

    check = _command(commands, "check", "Grade one completion and print its verdict; exit 0 if it is correct.")
    check.add_argument("completion", help="the completion, or - for standard input")
    check.add_argument("reference", help="the reference answer")
    check.add_argument("--question", help="the problem text, for graders that use it")
    check.add_argument(
        "--explain", action="store_true", help="print the extraction, both trees, the rungs and the reason (math only)"
    )
    add_pool_options(check)

    grade = _command(commands, "grade", "Grade a JSONL file of completion, reference and optional question.")
    grade.add_argument("file", type=Path, help="rows with the fields completion, reference, question")
    grade.add_argument("--out", type=Path, help="verdicts, one per line in input order; an interrupted run is resumed")
    add_pool_options(grade)

    audit = _command(commands, "audit", "List the references of a data set that the math grader cannot read.")
    audit.add_argument("file", type=Path, help="JSONL rows with the field answer, gold or reference, and optionally id")

    labels = _command(commands, "label-audit", "Compare verdicts with the labels of a file.")
    labels.add_argument("file", type=Path, help="JSONL rows of response, gold, label, and optionally id and question")
    add_pool_options(labels)

    doctor = _command(
        commands, "doctor", "Report how graders are isolated on this machine; exit 0 whole, 2 degraded, 3 unsafe."
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON; a run stores its tier of it")

    serve = _command(commands, "serve", "Serve rewards over HTTP, in OpenRLHF's format and in a batch format.")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    serve.add_argument("--port", type=int, default=5000, help="port to listen on, 0 for any free port; default: 5000")
    serve.add_argument("--token-file", type=Path, help="file with the bearer token that requests must carry")
    add_pool_options(serve)

    conformance = _command(commands, "conformance", "Run the conformance kit on a grader; exit 0 if it conforms.")
    conformance.add_argument("spec", help="the grader, as for --grader")
    conformance.add_argument(
        "--labelled",
        type=Path,
        help="JSONL rows of completion (or response), reference (or gold), status (or a true or false label), question",
    )
    conformance.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _command(commands: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=text)
