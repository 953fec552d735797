"""The `graders` command.

Exit codes: 0 done and fine, 1 the work found a failure, 2 bad usage or input. Messages go to stderr, results to stdout.
"""

import argparse
import codecs
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import msgspec

from graders.cli import audit_commands, grade_file
from graders.errors import BadInput, GraderError
from graders.sandbox.host.pool import GraderPool
from graders.verdict import Status

OK, FOUND_FAILURE, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    options = _parser().parse_args(argv)
    try:
        code = options.run(options)
        sys.stdout.flush()  # here, where a reader that has left is expected
        return code
    except GraderError as error:
        print(f"graders {options.command}: {error}", file=sys.stderr)
        return BAD_USAGE
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graders", description="Grade completions against references, in a sandbox.")
    commands = parser.add_subparsers(dest="command", required=True)

    check = _command(commands, "check", _check, "Grade one completion and print its verdict; exit 0 if it is correct.")
    check.add_argument("completion", help="the completion, or - for standard input")
    check.add_argument("reference", help="the reference answer")
    check.add_argument("--question", help="the problem text, for graders that use it")
    check.add_argument("--explain", action="store_true", help="show extraction, both trees, rungs and why (math only)")
    _pool_options(check)

    grade = _command(
        commands, "grade", grade_file.grade, "Grade a JSONL file of completion, reference and optional question."
    )
    grade.add_argument("file", type=Path, help="rows with the fields completion, reference, question")
    grade.add_argument(
        "--out", type=Path, help="where verdicts go, one a line in input order; killed and run again, it goes on"
    )
    _pool_options(grade)

    audit = _command(commands, "audit", audit_commands.audit, "List the references of a data set that cannot be read.")
    audit.add_argument("file", type=Path, help="JSONL rows with the field answer, gold or reference, and optionally id")

    labels = _command(
        commands, "label-audit", audit_commands.label_audit, "Compare verdicts with the labels of a file."
    )
    labels.add_argument("file", type=Path, help="JSONL rows of response, gold, label, and optionally id and question")
    _pool_options(labels)

    doctor = _command(
        commands, "doctor", _doctor, "Show what isolates graders on this machine; exit 0 whole, 2 degraded, 3 unsafe."
    )
    doctor.add_argument("--json", action="store_true", help="print the record as JSON; runs keep their tier of it")

    serve = _command(commands, "serve", _serve, "Serve rewards over HTTP, to OpenRLHF and anyone else.")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    serve.add_argument("--port", type=int, default=5000)
    serve.add_argument("--token-file", type=Path, help="file with the bearer token that requests must carry")
    _pool_options(serve)

    conformance = _command(
        commands, "conformance", _conformance, "Run the kit for authors on a grader; exit 0 if it conforms."
    )
    conformance.add_argument("spec", help="the grader, as for --grader")
    conformance.add_argument(
        "--labelled",
        type=Path,
        help="JSONL rows of completion (or response), reference (or gold), status (or a true or false label), question",
    )
    conformance.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _command(commands: argparse._SubParsersAction, name: str, run: Callable, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _pool_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--grader", default="math", help="a name, package.module:attribute or path.py:attribute; default: math"
    )
    command.add_argument("--workers", type=int, default=2, help="worker processes; default: 2")
    command.add_argument("--time-limit", type=float, default=2.0, help="seconds for one answer; default: 2")
    command.add_argument("--memory-limit", type=int, default=1 << 30, help="bytes for one worker; default: 1 GiB")


def pool_of(options: argparse.Namespace) -> GraderPool:
    """The pool that a command's options ask for."""
    return GraderPool(options.grader, options.workers, options.time_limit, options.memory_limit)


def _check(options: argparse.Namespace) -> int:
    completion = sys.stdin.read() if options.completion == "-" else options.completion
    with pool_of(options) as pool:
        verdict = pool.grade([(completion, options.reference, options.question)])[0]
    print(msgspec.json.encode(verdict).decode())
    if options.explain and verdict.status not in (Status.ERROR, Status.OVER_BUDGET):  # it has just been read safely
        from graders.cli.explain import explain

        print(explain(completion, options.reference, question=options.question))
    return OK if verdict.correct else FOUND_FAILURE


def _doctor(options: argparse.Namespace) -> int:
    from graders.cli import doctor

    examination = doctor.examine()
    print(msgspec.json.encode(examination).decode() if options.json else doctor.render(examination))
    return examination.exit_code


def _serve(options: argparse.Namespace) -> int:
    from graders.integrations import http_server

    token = _token(options.token_file) if options.token_file else None
    with http_server.listen(options.host, options.port) as listening, pool_of(options) as pool:
        host, port = listening.getsockname()[:2]
        print(f"serving {pool.name} on http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr)
        if token is None and not ip_address(host).is_loopback:
            print("without --token-file, anyone who reaches this address can use it", file=sys.stderr)
        http_server.run(http_server.Service(pool, token), listening)
    return OK


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: expected a readable file, got {getattr(error, 'strerror', error)}") from error
    if not token or not token.isascii():
        raise BadInput(f"{path}: expected a token of ASCII characters, got {'another text' if token else 'nothing'}")
    return token


def _conformance(options: argparse.Namespace) -> int:
    from graders.integrations import conformance

    labelled = (
        [row.labelled for row in read_rows(options.labelled, conformance.LabelledRow)] if options.labelled else []
    )
    found = conformance.conform(options.spec, labelled)
    print(msgspec.json.encode(found).decode() if options.json else conformance.render(found))
    return OK if found.passed else FOUND_FAILURE


R = TypeVar("R", bound=msgspec.Struct)


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Give the rows of a JSONL file, each of a kind.

    Raises:
        BadInput: the file cannot be read, or a line is not a row; names the line.
    """
    return list(iterate_rows(path, kind))


def iterate_rows(path: Path, kind: type[R]) -> Iterator[R]:
    """Give the rows one by one, without holding the file in memory.

    Raises:
        BadInput: the file cannot be read, or a line is not a row; names the line.
    """
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007  named by the error below
                if line.strip():
                    yield decoder.decode(line.removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise BadInput(f"{path}: expected a readable file, got {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} line {number}: expected {', '.join(kind.__struct_fields__)}, got: {error}") from error
