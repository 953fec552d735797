"""A small completions API server with a predictable policy: it returns the digits of the seed."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fake:
    """Received requests, and the faults to inject.

    Args:
        url: address of the server.
        asked: bodies of the completion requests.
        calls: paths and bodies of all POST requests.
        change: replaces the choice of a response.
        failures: number of next requests that get status 500.
        busy: number of next requests that get status 429.
        whole: replaces the body of a response.
        pause_s: pause before each response, in seconds.
        status: status of every completion response.
        hangs_up: close each connection after one response, without announcing it.
    """

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda choice: choice
    failures: int = 0
    busy: int = 0
    whole: Callable[[Any], Any] = lambda body: body
    pause_s: float = 0.0
    status: int = 200
    hangs_up: bool = False


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return a truncated completion: `max_tokens` tokens, one per digit of the seed."""
    ids = [int(digit) for digit in str(body["seed"]).rjust(body["max_tokens"], "0")[: body["max_tokens"]]]
    logprobs = {"token_logprobs": [-0.25 * (1 + i) for i in ids]}
    return {"token_ids": ids, "logprobs": logprobs, "finish_reason": "length", "text": "never read"}


@contextmanager
def serve() -> Iterator[Fake]:
    """Run the server until the end of the block."""
    fake, lock = Fake(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond(
                200, {"data": [{"id": "policy", "max_model_len": 40}, {"id": "other", "max_model_len": None}]}
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
            with lock:
                fake.calls.append((self.path, body))
                busy = fake.busy > 0
                fake.busy -= busy
                fails = not busy and fake.failures > 0
                fake.failures -= fails
            if busy:
                return self._respond(429, {"error": {"message": "rate limit"}}, retry_after="0")
            if fails:
                return self._respond(500, {"error": {"message": "engine is dead"}})
            if self.path != "/v1/completions":
                return self._respond(200, {})
            with lock:
                fake.asked.append(body)
            if fake.status != 200:
                return self._respond(fake.status, {"error": {"message": "no such thing"}})
            time.sleep(fake.pause_s)
            return self._respond(200, fake.whole({"choices": [fake.change(answer(body))]}))

        def _respond(self, status: int, body: Any, *, retry_after: str = "") -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = fake.hangs_up

        def log_message(self, *_: object) -> None:  # type: ignore[override]
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
