"""Attack runner: runs every attack, with or without the sandbox, and prints the outcomes as JSON.

    python run_attacks.py sandbox|bare [--deny docker|landlock|namespaces|seccomp ...]

`--deny` first restricts this process and its children as a poorer system would; see `restrictions.py`.
"""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("where", choices=["sandbox", "bare"])
    parser.add_argument("--deny", nargs="*", default=[])
    options = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import restrictions

    restrictions.deny(options.deny)
    os.environ["SECRET_TOKEN"] = "S3CRET"
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
        subprocess.Popen(["sleep", "1000"]) as victim,
    ):
        try:
            targets = prepare(Path(directory), server, unix, victim.pid)
            report = in_sandbox(targets) if options.where == "sandbox" else bare(targets)
            report["victim"] = "alive" if victim.poll() is None else "dead"
            report["directory"] = sorted(os.listdir(directory))
        finally:
            victim.kill()
    print(json.dumps(report))


def prepare(directory: Path, server: socket.socket, unix: socket.socket, victim: int) -> dict:
    """Create the targets of the attacks."""
    os.chmod(directory, 0o777)
    (directory / "secret").write_text("S3CRET")
    for bait in ("bait", "bait2"):
        (directory / bait).write_text("x")
    unix.bind(str(directory / "unix"))
    unix.listen()
    return {
        "dir": str(directory),
        "secret": str(directory / "secret"),
        "port": server.getsockname()[1],
        "unix": str(directory / "unix"),
        "victim": victim,
    }


def in_sandbox(targets: dict) -> dict:
    """Grade every attack in a pool."""
    from attacks import ATTACKS

    from graders import GraderPool

    question = json.dumps(targets)
    with GraderPool(f"{HERE}/attacker.py:Attacker", num_workers=2, time_limit_s=LIMIT_S) as pool:
        verdicts = pool.grade([(program, "", question) for program in ATTACKS.values()])
        layers = {layer.name: layer.state for layer in pool.layers}
    outcomes = {
        name: [verdict.status.value, verdict.method, verdict.detail]
        for name, verdict in zip(ATTACKS, verdicts, strict=True)
    }
    return {"outcomes": outcomes, "layers": layers}


def bare(targets: dict) -> dict:
    """Run every attack in a plain forked child: the positive control."""
    import attacker
    from attacks import ATTACKS

    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    return {"outcomes": {name: in_child(attacker, program, targets) for name, program in ATTACKS.items()}}


def in_child(attacker, program: str, targets: dict) -> list[str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        try:
            outcome = attacker.run_program(program, targets)
        except BaseException as error:  # noqa: BLE001  an attack that raises any exception was stopped
            outcome = f"stopped: {type(error).__name__}: {error}"[:200]
        os.write(writer, outcome.encode("utf-8", "replace"))
        os._exit(0)
    os.close(writer)
    outcome = os.read(reader, 4096).decode() if select.select([reader], [], [], 2 * LIMIT_S)[0] else "stopped: deadline"
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ["correct" if outcome.startswith("hurt") else "incorrect", "claim", outcome]


if __name__ == "__main__":
    begin = time.monotonic()
    main()
    print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
