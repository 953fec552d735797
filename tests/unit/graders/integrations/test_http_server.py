"""HTTP server: OpenRLHF's request and response, batches, limits, token, metrics."""

import asyncio
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graders import BadInput, GraderPool, SandboxUnavailable, cli
from graders.integrations.http_server import Service, listen, run

PLUG_IN = """
import time
from graders.verdict import Status, Verdict

class Ends:
    name = "ends"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        if completion == "fail":
            raise ValueError("planted")
        if completion == "slow":
            time.sleep(0.2)
        status = Status.CORRECT if completion.endswith(reference) else Status.INCORRECT
        return Verdict(status, None, self.name, "ends", "", 0.0)
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    path = tmp_path_factory.mktemp("ends") / "ends.py"
    path.write_text(textwrap.dedent(PLUG_IN))
    with GraderPool(f"{path}:Ends") as pool:
        yield pool


async def ask(
    service: Service, method: str, path: str, *chunks: bytes, token: str | None = None
) -> tuple[int, Any, dict]:
    """Send one request to the application, its body in chunks."""
    sent: list[Any] = []
    left = list(chunks) or [b""]

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    await service({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    start, end = sent
    assert int(dict(start["headers"])[b"content-length"]) == len(end["body"])
    text = end["body"].decode()
    body = json.loads(text) if dict(start["headers"])[b"content-type"] == b"application/json" else text
    return start["status"], body, dict(start["headers"])


def post(service: Service, path: str, body: Any, **options: Any) -> tuple[int, Any, dict]:
    return asyncio.run(ask(service, "POST", path, json.dumps(body).encode(), **options))


def test_openrlhf_request_and_response(pool: GraderPool) -> None:
    body = {"query": ["2+2?4", "2+2?5"], "prompts": ["2+2?", "2+2?"], "labels": ["4", "4"]}
    code, response, _ = post(Service(pool), "/", body)
    assert code == 200
    assert response == {"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {"grader_over_budget": [0.0, 0.0]}}


def test_grader_failure_is_never_a_reward_for_openrlhf(pool: GraderPool) -> None:
    code, response, _ = post(Service(pool), "/", {"query": ["4", "fail"], "prompts": ["", ""], "labels": ["4", "4"]})
    assert code == 500
    assert response == {"error": "item 1: the grader failed, so there is no reward: ValueError: planted"}


def test_batch_response_reports_each_error(pool: GraderPool) -> None:
    items = [{"completion": "4", "reference": "4"}, {"completion": "fail", "reference": "4", "question": "2+2?"}]
    code, response, _ = post(Service(pool), "/grade", {"items": items})
    assert (code, [verdict["status"] for verdict in response["verdicts"]]) == (200, ["correct", "error"])


def test_health_and_metrics(pool: GraderPool) -> None:
    service = Service(pool)
    post(service, "/grade", {"items": [{"completion": "4", "reference": "4"}]})
    assert asyncio.run(ask(service, "GET", "/healthz"))[:2] == (200, {"status": "ok", "grader": "ends"})
    code, text, _ = asyncio.run(ask(service, "GET", "/metrics"))
    lines = text.splitlines()
    assert code == 200
    assert 'graders_requests_total{path="/grade",code="200"} 1' in lines
    assert any(line.startswith('graders_verdicts_total{status="correct"} ') for line in lines)
    assert "graders_items_in_flight 0" in lines


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "message"),
    [
        ("GET", "/nowhere", b"", 404, "expected one of"),
        ("GET", "/grade", b"", 405, "expected POST for /grade, got GET"),
        ("POST", "/grade", b"{", 422, "expected items"),
        ("POST", "/grade", b'{"items": [{"completion": 1, "reference": "1"}]}', 422, "Expected `str`"),
        ("POST", "/", b'{"query": ["a"], "prompts": [], "labels": []}', 422, "as many prompts and labels"),
        ("POST", "/grade", b"x" * 2000, 413, "expected at most 1000 bytes"),
    ],
)
def test_bad_requests_are_rejected(
    pool: GraderPool, method: str, path: str, body: bytes, code: int, message: str
) -> None:
    found, response, _ = asyncio.run(ask(Service(pool, max_body_bytes=1000), method, path, body[:500], body[500:]))
    assert found == code
    assert message in response["error"]


def test_closed_connection_is_a_bad_request(pool: GraderPool) -> None:
    async def cut_off() -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await Service(pool)({"type": "http", "method": "POST", "path": "/grade", "headers": []}, receive, send)
        return sent[0]["status"]

    assert asyncio.run(cut_off()) == 400


def test_too_many_items_in_flight_get_503(pool: GraderPool) -> None:
    async def send_many() -> list[tuple[int, Any, dict]]:
        service = Service(pool, max_items_in_flight=2)
        body = json.dumps({"items": [{"completion": "slow", "reference": "w"}] * 2}).encode()
        return await asyncio.gather(*(ask(service, "POST", "/grade", body) for _ in range(3)))

    answers = asyncio.run(send_many())
    assert sorted(code for code, _, _ in answers) == [200, 503, 503]
    refused = next(headers for code, _, headers in answers if code == 503)
    assert refused[b"retry-after"] == b"1"


def test_bytes_being_received_are_bounded(pool: GraderPool) -> None:
    async def send_many() -> list[int]:
        service, codes, gate = Service(pool, max_body_bytes=1000), [], asyncio.Event()

        async def upload() -> None:
            parts = [b"x" * 900]

            async def receive() -> dict[str, Any]:
                if parts:
                    return {"type": "http.request", "body": parts.pop(), "more_body": True}
                await gate.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                codes.append(message.get("status"))

            await service({"type": "http", "method": "POST", "path": "/grade", "headers": []}, receive, send)

        slow = [asyncio.create_task(upload()) for _ in range(12)]
        await asyncio.sleep(0.05)
        refused = [code for code in codes if code]
        gate.set()
        await asyncio.gather(*slow)
        assert service._bytes_held == 0
        return refused

    assert asyncio.run(send_many()) == [503] * 4


def test_websocket_is_closed(pool: GraderPool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Service(pool)({"type": "websocket", "path": "/"}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1003}]


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_pool_that_cannot_start_is_not_healthy(tmp_path: Path, path: str) -> None:
    code, response, _ = asyncio.run(ask(Service(GraderPool(f"{tmp_path}/missing.py:G")), "GET", path))
    assert (code, "expected an existing Python file" in response["error"]) == (503, True)


def test_token_is_required_except_for_health(pool: GraderPool) -> None:
    service = Service(pool, token="s3cret")
    body = {"items": [{"completion": "4", "reference": "4"}]}
    assert post(service, "/grade", body)[0] == 401
    assert post(service, "/grade", body, token="wrong")[0] == 401
    assert post(service, "/grade", body, token="s3cret")[0] == 200
    assert asyncio.run(ask(service, "GET", "/healthz"))[0] == 200


def test_grader_that_cannot_start_is_a_server_error(tmp_path: Path) -> None:
    service = Service(GraderPool(f"{tmp_path}/missing.py:G"))
    code, response, _ = post(service, "/grade", {"items": [{"completion": "4", "reference": "4"}]})
    assert (code, "expected an existing Python file" in response["error"]) == (500, True)


def test_lifespan_events_are_acknowledged(pool: GraderPool) -> None:
    async def live() -> list[str]:
        events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[str] = []

        async def receive() -> dict[str, Any]:
            return events.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await Service(pool)({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(live()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_missing_server_package_is_named(pool: GraderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        listen("127.0.0.1", 0) as listening,
        pytest.raises(SandboxUnavailable, match=r"pip install 'graders\[serve\]'"),
    ):
        run(Service(pool), listening)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 99999, "expected a port from 0 to 65535, got 99999"),
        ("127.0.0.1", -1, "expected a port from 0 to 65535, got -1"),
        ("203.0.113.5", 0, "expected to listen on 203.0.113.5, port 0, got: .*; choose another --host or --port"),
    ],
)
def test_unavailable_address_is_named(host: str, port: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        listen(host, port)


def test_port_in_use_is_reported_before_the_pool_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        assert cli.main(["serve", "--port", str(taken.getsockname()[1]), "--grader", "no such grader"]) == 2
    assert "in use; choose another --host or --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("token", "got"), [(b"", "an empty file"), (b" \n", "an empty file"), ("é".encode(), "other text")]
)
def test_command_rejects_an_unusable_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], token: bytes, got: str
) -> None:
    (tmp_path / "token").write_bytes(token)
    assert cli.main(["serve", "--token-file", str(tmp_path / "token")]) == 2
    assert f"expected a token of ASCII characters, got {got}" in capsys.readouterr().err


def test_command_rejects_a_missing_token_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--token-file", str(tmp_path / "none")]) == 2
    assert "expected a readable file" in capsys.readouterr().err
