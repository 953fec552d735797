"""One server that JSON is sent to, over connections that are kept."""

import http.client
import json
import queue
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mathppo.errors import BadSetting

TIMEOUT_S = 600.0
"""Longest wait for one answer."""

PAUSE_S = 1.0
"""Before a lost request is sent again; doubled each time."""

BUSY_S = 600.0
"""Longest wait in all for a server that says it is busy: such answers count as no try."""

LONGEST_PAUSE_S = 60.0
"""Between two tries, whatever the server asks for."""

LOST = (OSError, http.client.HTTPException)
"""What a request raises that got no answer, or the answer that the server is in trouble."""


class Refused(Exception):
    """The server answered that the request itself is wrong: sending it again would not help."""


class Busy(ConnectionError):
    """The server is well and asks to be left alone for a while: 429, or 503 with a time.

    Args:
        message: what it said.
        pause_s: how long it asks for; 0 where it does not say.
    """

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class Address:
    """Sends JSON to one server, over connections that are kept for the next requests."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.scheme not in ("", "http", "https") or not parts.hostname:
            raise BadSetting(f"generator.url: expected an address such as http://127.0.0.1:8000, got {url!r}")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        scheme = parts.scheme or "http"
        port = parts.port or (443 if scheme == "https" else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{port}{self._prefix}"
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any], *, tries: int) -> Any:
        """Send until there is an answer; a server that is merely busy is waited for.

        Raises:
            Refused: the request itself is wrong.
            OSError, http.client.HTTPException: no answer in all tries.
        """
        payload = json.dumps(body).encode()
        failed, refusals, waited_s = 0, 0, 0.0
        while True:
            try:
                return self._send("POST", path, payload)
            except Busy as busy:
                pause_s = min(LONGEST_PAUSE_S, busy.pause_s or PAUSE_S * 2**refusals)
                refusals, waited_s = refusals + 1, waited_s + pause_s
                if waited_s > BUSY_S:
                    raise
            except LOST:
                failed += 1
                if failed >= tries:
                    raise
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** (failed - 1))
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while not self._idle.empty():
            self._idle.get().close()

    def _send(self, method: str, path: str, payload: bytes | None) -> Any:
        response, content = self._exchange(method, path, payload)
        asked_s = _seconds(response.getheader("Retry-After"))
        if response.status == 429 or (response.status == 503 and asked_s):
            raise Busy(f"{path} answered {response.status}: {_message(content)}", asked_s)
        if response.status >= 500:
            raise ConnectionError(f"{path} answered {response.status}: {_message(content)}")
        if response.status >= 300:
            raise Refused(f"{path} answered {response.status}: {_message(content)}")
        try:
            return json.loads(content) if content.strip() else None
        except ValueError:
            raise ConnectionError(f"{path} answered {response.status} with what is no JSON: {content[:80]!r}") from None

    def _exchange(self, method: str, path: str, payload: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
        while True:
            try:
                connection, is_kept = self._idle.get_nowait(), True
            except queue.Empty:
                connection, is_kept = self._kind(self._host, self._port, timeout=TIMEOUT_S), False
            try:
                connection.request(method, self._prefix + path, payload, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read()
            except BaseException as error:
                connection.close()
                if is_kept and isinstance(error, ConnectionError):
                    continue  # servers close what nobody used for a while, vLLM after five seconds: no failure
                raise
            self._idle.put(connection)
            return response, content


def _seconds(header: str | None) -> float:
    """Read `Retry-After`; dates, which model servers do not send, count as none."""
    return float(header) if header and header.strip().isdecimal() else 0.0


def _message(content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        return str(body.get("error", {}).get("message", text))[:300]
    except (ValueError, AttributeError):
        return text[:300]
