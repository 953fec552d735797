"""`graders serve` with a real server on loopback and a real client: limits, token, metrics, shutdown."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

PLUG_IN = """
import time
from graders.verdict import Status, Verdict

class Ends:
    name = "ends"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        if completion == "slow":
            time.sleep(0.5)
        if completion == "hang":
            time.sleep(1000)
        status = Status.CORRECT if completion.endswith(reference) else Status.INCORRECT
        return Verdict(status, None, self.name, "ends", "", 0.0)
"""
TOKEN = "s3cret"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("serve")
    (directory / "ends.py").write_text(PLUG_IN)
    (directory / "token").write_text(TOKEN + "\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "graders.cli", "serve", "--port", str(port), "--time-limit", "1"]
    command += ["--token-file", str(directory / "token"), "--grader", f"{directory}/ends.py:Ends"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) in (0, -signal.SIGTERM)
        assert server.stderr is not None
        printed = server.stderr.read()
        assert "Traceback" not in printed, printed
        assert TOKEN not in printed


def ask(port: int, method: str, path: str, body: Any = None, token: str | None = TOKEN) -> tuple[int, Any, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    encoded = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, encoded, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text, dict(response.headers)


def test_openrlhf_request(port: int) -> None:
    code, body, _ = ask(port, "POST", "/", {"query": ["2+2?4", "2+2?5"], "prompts": ["2+2?"] * 2, "labels": ["4"] * 2})
    assert (code, body["rewards"], body["scores"]) == (200, [1.0, 0.0], [1.0, 0.0])


def test_server_listens_on_loopback_only(port: int) -> None:
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if f":{port:04X} 00000000" in line
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_requests_without_the_token_are_rejected(port: int) -> None:
    items = {"items": [{"completion": "4", "reference": "4"}]}
    codes = [ask(port, "POST", "/grade", items, token)[0] for token in (None, "", "wrong", TOKEN + "x", TOKEN)]
    assert codes == [401, 401, 401, 401, 200]
    assert ask(port, "GET", "/metrics", token=None)[0] == 401
    assert ask(port, "GET", "/healthz", token=None)[:2] == (200, {"status": "ok", "grader": "ends"})


def test_body_over_the_limit_is_rejected(port: int) -> None:
    assert ask(port, "POST", "/grade", b" " * ((16 << 20) + 1))[0] == 413


def test_hang_affects_only_its_item(port: int) -> None:
    items = [{"completion": text, "reference": "4"} for text in ("4", "hang", "5")]
    begin = time.monotonic()
    code, body, _ = ask(port, "POST", "/grade", {"items": items})
    assert (code, [v["status"] for v in body["verdicts"]]) == (200, ["correct", "over_budget", "incorrect"])
    assert time.monotonic() - begin < 10


def test_overloaded_server_rejects_and_recovers(port: int) -> None:
    slow = {"items": [{"completion": "slow", "reference": "w"}] * 4}
    many = {"items": [{"completion": "4", "reference": "4"}] * 4095}
    first = threading.Thread(target=ask, args=(port, "POST", "/grade", slow))
    first.start()
    time.sleep(0.2)
    code, _, headers = ask(port, "POST", "/grade", many)
    first.join()
    assert (code, headers["retry-after"]) == (503, "1")
    assert ask(port, "POST", "/grade", many)[0] == 200


def test_metrics_are_in_prometheus_format(port: int) -> None:
    code, text, headers = ask(port, "GET", "/metrics")
    assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert all(float(value) >= 0 for value in values.values())
    assert float(values['graders_verdicts_total{status="correct"}']) > 0
    assert float(values['graders_requests_total{path="/grade",code="503"}']) == 1
    assert float(values["graders_items_in_flight"]) == 0


def test_server_survives_garbage_and_dropped_connections(port: int) -> None:
    for noise in (b"\0" * 100, b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n{", os.urandom(500)):
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(noise)
    assert ask(port, "GET", "/healthz")[0] == 200
