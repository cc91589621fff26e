"""A real browser without a window, driven through the pipe of its own debugging protocol: keys, taps, pictures."""

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
"""Seconds that a reply may take: a page of 5 MB on a busy machine draws in about five."""

# The browser reads commands from descriptor 3 and replies on 4, which nothing else here may hold by chance.
_LAUNCH = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]];"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "ArrowDown": 40}
"""Key -> its code in the protocol."""


def find_browser() -> str | None:
    """The Chromium of this machine, or the one in SPECDEC_CHROMIUM; None where there is none."""
    return os.environ.get("SPECDEC_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process of the browser with one page."""

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
        """A command of the protocol and its result. Raises AssertionError where the browser refuses or is silent."""
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
        """Read on until the page reports the event."""
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
        # Without its pipe the browser ends by itself.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()

    # A page in it

    def open(
        self, page: Path, fragment: str = "", *, width: int = 1400, height: int = 900, phone: bool = False
    ) -> None:
        """Load a file in a window of so many CSS pixels; a phone has a touch screen. Scroll bars take no room."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        # What would glide is there at once.
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        self.send("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.send("Page.navigate", url=f"{page.resolve().as_uri()}{fragment}")
        self.wait_for("Page.loadEventFired")
        assert not self.failures, self.failures

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of a function's body with ``return``, in the page."""
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
        """A finger's tap at a place in the window."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def pdf(self) -> bytes:
        """The page as it is printed, on A4."""
        return base64.b64decode(
            self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)["data"]
        )
