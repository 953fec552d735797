"""HTTP server of `graders serve`: a pool behind an ASGI application, for trainers that call a reward server.

    POST /          OpenRLHF: {"query": [text], "prompts": [text], "labels": [text]}
                              -> {"rewards": [number], "scores": [number], "extra_logs": {}}
    POST /grade     {"items": [{"completion", "reference", "question"?}]} -> {"verdicts": [verdict]}
    GET  /healthz   {"status": "ok", "grader": name}
    GET  /metrics   Prometheus text

Requests are rejected instead of queued without bound: 413 above the size limit, 503 with Retry-After while too many
items are in flight, 401 without the bearer token if one is set. OpenRLHF's format cannot express "no reward", so if the
grader fails on any item, the request gets 500 instead of a zero that would be learned from; /grade reports each item.
"""

import asyncio
import contextlib
import hmac
import importlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from graders.errors import BadInput, GraderError, SandboxUnavailable
from graders.integrations.reward_functions import openrlhf_items, reward_of
from graders.sandbox.host.pool import GraderPool
from graders.verdict import Status, Verdict

MAX_BODY_BYTES = 16 << 20
MAX_ITEMS_IN_FLIGHT = 4096
RETRY_AFTER_S = 1
MAX_BODIES_HELD = 8
"""Bound on the bytes being received by all requests together, in bodies of the largest size."""
MAX_CONNECTIONS = 512
KEEP_ALIVE_S = 5
MAX_PORT = 65535
POOL_COUNTS = "forks kills delays crashes violations canaries late_imports zygote_restarts".split()

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Item(msgspec.Struct, frozen=True):
    """One completion to grade."""

    completion: str
    reference: str
    question: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """The body of POST /grade."""

    items: list[Item]


class Query(msgspec.Struct, frozen=True):
    """The body of OpenRLHF's request."""

    query: list[str]
    prompts: list[str]
    labels: list[str]


class RequestError(Exception):
    """A request that gets an error response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service:
    """ASGI application that grades with a pool.

    Args:
        pool: the pool.
        token: bearer token that every request except /healthz must carry; None to require none.
        max_body_bytes: size limit of a request body.
        max_items_in_flight: limit on the items of all requests together; a request that arrives alone is always
            accepted.
    """

    def __init__(
        self,
        pool: GraderPool,
        token: str | None = None,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_items_in_flight: int = MAX_ITEMS_IN_FLIGHT,
    ) -> None:
        self._pool = pool
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._max_items_in_flight = max_items_in_flight
        self._in_flight = 0
        self._bytes_held = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._busy_s = 0.0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await _handle_lifespan(receive, send)
            return
        if scope["type"] != "http":  # a websocket
            await send({"type": "websocket.close", "code": 1003})
            return
        begin = time.perf_counter()
        path, kind = scope["path"], "application/json"
        try:
            self._authorise(scope)
            body, kind = await self._route(scope["method"], path, receive)
            code = 200
        except RequestError as error:
            code, body = error.code, msgspec.json.encode({"error": str(error)})
        self._requests[path if path in _ROUTES else "other", code] += 1
        self._busy_s += time.perf_counter() - begin
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        if code == 503:
            headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _authorise(self, scope: MutableMapping[str, Any]) -> None:
        if self._token is None or scope["path"] == "/healthz":
            return
        credentials = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(credentials, f"Bearer {self._token}".encode()):
            raise RequestError(401, "expected the header 'Authorization: Bearer TOKEN'")

    async def _route(self, method: str, path: str, receive: Receive) -> tuple[bytes, str]:
        if path not in _ROUTES:
            raise RequestError(404, f"expected one of {', '.join(_ROUTES)}, got {path!r}")
        if method != _ROUTES[path]:
            raise RequestError(405, f"expected {_ROUTES[path]} for {path}, got {method}")
        if path == "/healthz":
            return msgspec.json.encode(
                {"status": "ok", "grader": await self._pool_attribute("name")}
            ), "application/json"
        if path == "/metrics":
            return self._metrics(await self._pool_attribute("counts")).encode(), "text/plain; version=0.0.4"
        body = await self._receive_body(receive)
        if path == "/grade":
            batch = _decode(body, Batch)
            verdicts = await self._grade([(item.completion, item.reference, item.question) for item in batch.items])
            return msgspec.json.encode({"verdicts": verdicts}), "application/json"
        query = _decode(body, Query)
        if not len(query.query) == len(query.prompts) == len(query.labels):
            raise RequestError(422, "expected as many prompts and labels as queries")
        verdicts = await self._grade(openrlhf_items(query.query, query.prompts, query.labels))
        return msgspec.json.encode(_openrlhf_response(verdicts)), "application/json"

    async def _pool_attribute(self, attribute: str) -> Any:
        """Read an attribute in a thread, because a pool that has failed takes seconds to restart."""
        try:
            return await asyncio.to_thread(getattr, self._pool, attribute)
        except GraderError as error:
            raise RequestError(503, str(error)) from error

    async def _receive_body(self, receive: Receive) -> bytes:
        """Receive the body, within the limits on its size and on the bytes being received by all requests."""
        received = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "expected a complete request, got a closed connection")
                part = message.get("body", b"")
                received += part
                self._bytes_held += len(part)
                if len(received) > self._max_body_bytes:
                    raise RequestError(413, f"expected at most {self._max_body_bytes} bytes")
                if self._bytes_held > MAX_BODIES_HELD * self._max_body_bytes:
                    raise RequestError(503, "too many requests are being received; try again")
                if not message.get("more_body"):
                    return bytes(received)
        finally:
            self._bytes_held -= len(received)

    async def _grade(self, items: list[tuple[str, str, str | None]]) -> list[Verdict]:
        if self._in_flight and self._in_flight + len(items) > self._max_items_in_flight:
            raise RequestError(503, f"{self._in_flight} items are in flight; try again")
        self._in_flight += len(items)
        try:
            return await self._pool.grade_async(items)
        except BadInput as error:
            raise RequestError(422, str(error)) from error
        except GraderError as error:
            raise RequestError(500, str(error)) from error
        finally:
            self._in_flight -= len(items)

    def _metrics(self, counts: dict[str, int]) -> str:
        lines = ["# TYPE graders_verdicts_total counter"]
        lines += [f'graders_verdicts_total{{status="{s.value}"}} {counts.get(s.value, 0)}' for s in Status]
        for name in POOL_COUNTS:
            lines += [f"# TYPE graders_{name}_total counter", f"graders_{name}_total {counts.get(name, 0)}"]
        lines.append("# TYPE graders_requests_total counter")
        lines += [
            f'graders_requests_total{{path="{path}",code="{code}"}} {count}'
            for (path, code), count in sorted(self._requests.items())
        ]
        lines += ["# TYPE graders_request_seconds_total counter", f"graders_request_seconds_total {self._busy_s:.6f}"]
        lines += ["# TYPE graders_items_in_flight gauge", f"graders_items_in_flight {self._in_flight}"]
        return "\n".join(lines) + "\n"


_ROUTES = {"/": "POST", "/grade": "POST", "/healthz": "GET", "/metrics": "GET"}


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to serve on; port 0 picks a free one.

    Raises:
        BadInput: the address is invalid or in use.
    """
    if not 0 <= port <= MAX_PORT:
        raise BadInput(f"expected a port from 0 to {MAX_PORT}, got {port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]
        raise BadInput(
            f"expected to listen on {host}, port {port}, got: {reason}; choose another --host or --port"
        ) from error


def run(service: Service, listening: socket.socket) -> None:
    """Serve on a listening socket until interrupted.

    Raises:
        SandboxUnavailable: uvicorn is not installed.
    """
    try:
        uvicorn = importlib.import_module("uvicorn")  # an optional dependency
    except ImportError as error:
        raise SandboxUnavailable(
            "graders serve: expected the package uvicorn, found none; pip install 'graders[serve]'"
        ) from error
    config = uvicorn.Config(
        service, log_level="warning", access_log=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S, server_header=False,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise RequestError(422, f"expected {', '.join(kind.__struct_fields__)}: {error}") from error


def _openrlhf_response(verdicts: list[Verdict]) -> dict[str, Any]:
    for number, verdict in enumerate(verdicts):
        if reward_of(verdict) is None:
            raise RequestError(500, f"item {number}: the grader failed, so there is no reward: {verdict.detail}")
    rewards = [reward_of(verdict) for verdict in verdicts]
    over_budget = [float(verdict.status is Status.OVER_BUDGET) for verdict in verdicts]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"grader_over_budget": over_budget}}


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
