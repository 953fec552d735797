"""HTTP client for JSON requests to one server, with kept-alive connections."""

import http.client
import json
import queue
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mathppo.errors import BadSetting

TIMEOUT_S = 600.0
"""Longest wait for one response, in seconds."""

PAUSE_S = 1.0
"""Pause before a failed request is sent again, in seconds; doubled at each try."""

BUSY_S = 600.0
"""Longest total wait for a busy server, in seconds; its responses do not count as tries."""

LONGEST_PAUSE_S = 60.0
"""Longest pause between two tries, in seconds, even if the server asks for a longer one."""

CONNECTION_ERRORS = (OSError, http.client.HTTPException)
"""Raised by a request without a response, or with a response of status 500 or higher."""


class RequestRejected(Exception):
    """The server rejected the request; sending it again does not help."""


class ServerBusy(ConnectionError):
    """The server is overloaded: status 429, or 503 with a Retry-After header.

    Args:
        message: message of the server.
        pause_s: seconds from the Retry-After header; 0 if missing.
    """

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class HTTPClient:
    """Sends JSON to one server and keeps its connections alive; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        wrong = BadSetting(f"generator.url: expected an address such as http://127.0.0.1:8000, got {url!r}")
        try:
            parts = urlsplit(url if "//" in url else f"//{url}")
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:  # a bad port or IPv6 address
            raise wrong from None
        if parts.scheme not in ("", "http", "https") or not self._host:
            raise wrong
        self._connection_type = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        scheme = parts.scheme or "http"
        port = self._port or (443 if scheme == "https" else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{port}{self._prefix}"
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any], *, tries: int) -> Any:
        """Send a request, with retries, and return the response; wait for a busy server.

        Raises:
            RequestRejected: the server rejected the request.
            OSError, http.client.HTTPException: every try failed.
        """
        payload = json.dumps(body).encode()
        num_failed, num_busy, waited_s = 0, 0, 0.0
        while True:
            try:
                return self._send("POST", path, payload)
            except ServerBusy as busy:
                pause_s = min(LONGEST_PAUSE_S, busy.pause_s or PAUSE_S * 2**num_busy)
                num_busy, waited_s = num_busy + 1, waited_s + pause_s
                if waited_s > BUSY_S:
                    raise
            except CONNECTION_ERRORS:
                num_failed += 1
                if num_failed >= tries:
                    raise
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** (num_failed - 1))
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the idle connections."""
        while not self._idle.empty():
            self._idle.get().close()

    def _send(self, method: str, path: str, payload: bytes | None) -> Any:
        response, content = self._exchange(method, path, payload)
        retry_after_s = _seconds(response.getheader("Retry-After"))
        if response.status == 429 or (response.status == 503 and retry_after_s):
            raise ServerBusy(f"{path} answered {response.status}: {_message(content)}", retry_after_s)
        if response.status >= 500:
            raise ConnectionError(f"{path} answered {response.status}: {_message(content)}")
        if response.status >= 300:
            raise RequestRejected(f"{path} answered {response.status}: {_message(content)}")
        try:
            return json.loads(content) if content.strip() else None
        except ValueError:
            raise ConnectionError(
                f"{path} answered {response.status} with a body that is not JSON: {content[:80]!r}"
            ) from None

    def _exchange(self, method: str, path: str, payload: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
        while True:
            try:
                connection, is_reused = self._idle.get_nowait(), True
            except queue.Empty:
                connection, is_reused = self._connection_type(self._host, self._port, timeout=TIMEOUT_S), False
            try:
                connection.request(method, self._prefix + path, payload, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read()
            except BaseException as error:
                connection.close()
                if is_reused and isinstance(error, ConnectionError):
                    continue  # servers close idle connections, vLLM after 5 s; this is not a failure
                raise
            self._idle.put(connection)
            return response, content


def _seconds(header: str | None) -> float:
    """Parse a `Retry-After` header; a date, which model servers do not send, counts as 0."""
    return float(header) if header and header.strip().isdecimal() else 0.0


def _message(content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        return str(body.get("error", {}).get("message", text))[:300]
    except (ValueError, AttributeError):
        return text[:300]
