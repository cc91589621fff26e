"""A headless browser, driven by the Chrome DevTools protocol through a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    "--remote-debugging-pipe",
)
PATIENCE = 60.0
"""Timeout of a reply in seconds: a page of 5 MB renders in about five on a busy machine."""

# The browser reads commands from descriptor 3 and replies on 4.
_LAUNCH = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]];"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "ArrowDown": 40}
"""Key -> its code in the protocol."""


def find_browser() -> str | None:
    """The Chromium in SPECDEC_CHROMIUM or of this machine; None without one."""
    return os.environ.get("SPECDEC_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser process with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, replies = os.pipe()
        ends = (commands, replies)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *map(str, ends), program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._buffer, self._last, self._session = b"", 0, ""
        self.failures: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; returns its result. Raises AssertionError on an error or without a reply."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._to, left) :]
        for reply in self._messages():
            if reply.get("id") == self._last:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
        raise AssertionError(f"{method}: no reply")

    def wait_for(self, event: str) -> None:
        """Wait until the page reports the event."""
        assert any(message.get("method") == event for message in self._messages()), f"no {event}"

    def _messages(self) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            whole, end, rest = self._buffer.partition(b"\0")
            if end:
                self._buffer = rest
                message = json.loads(whole)
                if message.get("method") == "Runtime.exceptionThrown":
                    self.failures.append(message["params"]["exceptionDetails"]["exception"]["description"])
                yield message
            elif select.select([self._from], [], [], 1.0)[0]:
                piece = os.read(self._from, 1 << 20)
                assert piece, "the browser has ended"
                self._buffer += piece

    def close(self) -> None:
        for end in (self._to, self._from):
            os.close(end)
        # The browser ends when its pipe is closed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()

    # A page in it

    def open(
        self, page: Path, fragment: str = "", *, width: int = 1400, height: int = 900, phone: bool = False
    ) -> None:
        """Load a file in a window of this size in CSS pixels; a phone has a touch screen. Scroll bars take no space."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        # Disable animations.
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        self.send("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.send("Page.navigate", url=f"{page.resolve().as_uri()}{fragment}")
        self.wait_for("Page.loadEventFired")
        assert not self.failures, self.failures

    def evaluate(self, script: str) -> Any:
        """Evaluate an expression, or a function body with ``return``, in the page."""
        body = script if "return " in script else f"return ({script})"
        found = self.send(
            "Runtime.evaluate", expression=f"(async () => {{ {body} }})()", returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]["exception"].get("description")
        return found["result"].get("value")

    def press(self, key: str) -> None:
        about = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"Enter": "\r", "Space": " "}.get(key)
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def tap(self, x: float, y: float) -> None:
        """Tap at a position in the window."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def pdf(self) -> bytes:
        """The page printed on A4."""
        return base64.b64decode(
            self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)["data"]
        )
