"""A headless Chromium, controlled over its debugging pipe with the standard library only."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def executable() -> str:
    """Return the path of Chromium; without it skip the test, or fail if `REQUIRE_CHROMIUM` is set."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("REQUIRE_CHROMIUM"):
        pytest.fail("REQUIRE_CHROMIUM is set, but no chromium is on the path")
    if found is None:
        pytest.skip("needs chromium on the path (Debian: apt-get install chromium)")
    return found


class Browser:
    """One page in one browser.

    Args:
        folder: an empty folder for the browser's profile.
    """

    def __init__(self, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4; a shell moves ours there.
        # First to high numbers, as one of ours may itself be 3 or 4.
        command = f'exec 8<&{theirs_in} 9>&{theirs_out}; exec 3<&8 4>&9 8<&- 9>&-; exec "$@"'
        arguments = [executable(), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", *arguments],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._write, self._rest, self._count = ours_in, ours_out, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        (page,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its reply; other messages are appended to `events`."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "chromium did not answer within 60 s"
            if select.select([self._read], [], [], 1)[0]:
                self._rest += os.read(self._read, 1 << 20)
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path) -> float:
        """Load a file and return the seconds until its load event."""
        start = time.monotonic()
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        return time.monotonic() - start

    def run(self, script: str) -> Any:
        """Evaluate JavaScript in the page and return its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page at a width of CSS pixels, in light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def centre(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view and return the centre of its visible part."""
        found = f"const e = document.querySelector({json.dumps(selector)});"
        scroll = "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
        box = self.run(f"(() => {{ {found} {scroll} return [b.x + b.width / 2, b.y + b.height / 2] }})()")
        return box[0], box[1]

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.hover(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, *, whole: bool = True) -> str:
        """Return a screenshot as base64 PNG."""
        return self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        # Closing the browser ends its child processes, which would otherwise keep writing to the profile.
        self.call("Browser.close")
        os.close(self._read)
        os.close(self._write)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
