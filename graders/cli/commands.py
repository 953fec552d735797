"""Small commands: `graders check`, `graders conformance` and `graders serve`."""

import argparse
import sys
from ipaddress import ip_address
from pathlib import Path

import msgspec

from graders.cli.pool_options import FOUND_FAILURE, OK, pool_of
from graders.cli.rows import read_rows
from graders.errors import BadInput
from graders.verdict import Status


def check(options: argparse.Namespace) -> int:
    """Print the verdict on one completion and return 0 if it is correct."""
    completion = sys.stdin.read() if options.completion == "-" else options.completion
    with pool_of(options) as pool:
        verdict = pool.grade([(completion, options.reference, options.question)])[0]
    print(msgspec.json.encode(verdict).decode())
    # explain() reads the completion outside the sandbox, so only after the sandbox has read it without trouble
    if options.explain and verdict.status not in (Status.ERROR, Status.OVER_BUDGET):
        from graders.cli.explain import explain

        print(explain(completion, options.reference, question=options.question))
    return OK if verdict.correct else FOUND_FAILURE


def conformance(options: argparse.Namespace) -> int:
    """Print the findings of the conformance kit and return 0 if the grader conforms."""
    from graders.integrations.conformance import LabelledRow, conform, render

    labelled = [row.labelled for row in read_rows(options.labelled, LabelledRow)] if options.labelled else []
    found = conform(options.spec, labelled)
    print(msgspec.json.encode(found).decode() if options.json else render(found))
    return OK if found.passed else FOUND_FAILURE


def serve(options: argparse.Namespace) -> int:
    """Serve a pool over HTTP until interrupted."""
    from graders.integrations.http_server import Service, listen, run

    token = _read_token(options.token_file) if options.token_file else None
    with listen(options.host, options.port) as listening, pool_of(options) as pool:
        host, port = listening.getsockname()[:2]
        print(f"serving {pool.name} on http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr)
        if token is None and not ip_address(host).is_loopback:
            print("warning: without --token-file, any client that reaches this address can use it", file=sys.stderr)
        run(Service(pool, token), listening)
    return OK


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: expected a readable file, got {getattr(error, 'strerror', error)}") from error
    if not token or not token.isascii():
        found = "other text" if token else "an empty file"
        raise BadInput(f"{path}: expected a token of ASCII characters, got {found}")
    return token
