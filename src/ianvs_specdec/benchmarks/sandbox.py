"""Run a Python program of unknown origin with limits, and learn whether it passes its tests.

Four processes take part. This one asks a watcher (``sandboxed/watcher.py``), which starts the program and, apart from
it, the tests. The tests call the program's function over a pipe and compare what it returns: the program knows neither
what is expected nor who judges, so that it can answer rightly or wrongly, and nothing else. Everything ends with the
watcher, and the watcher with this process, however that ends; nothing is left behind.

Program and tests have no packages of this environment and none of its variables, and limits on time, memory, files and
processes. What else keeps them in depends on the system; ``confinement.py`` does what it permits and tells what it did.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

WALL = 10
"""Seconds on the clock for each second of processor time: other processes must not decide whether a program passes."""
CLEARING = 10.0
"""Seconds for the watcher to clear up after that."""

PREFIX = "specdec-program-"
"""Of the folders that programs run in."""

_ROOT = str(Path(__file__).resolve().parents[2])
_BEGIN = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from ianvs_specdec.benchmarks.sandboxed.watcher import main; del sys.path[0]; main()"
)


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time, and bytes of address space, for the program and for the tests each."""

    seconds: float
    memory: int = 1 << 30


@dataclass(frozen=True)
class Trial:
    """``source`` may use the function ``entry_point`` and whatever ``setup`` defines."""

    source: str
    entry_point: str
    setup: str = ""


@dataclass(frozen=True)
class SandboxVerdict:
    """``error``: "" if the program passes, else why not. ``held``: what confined it, in the words of ``confinement``;
    empty where the program ended before that was told.
    """

    error: str
    held: tuple[str, ...] = ()


def run(source: str, limits: Limits, tests: Trial | None = None) -> SandboxVerdict:
    """Run a program and its tests; without tests it passes if it comes to its end without an exception. Raises
    UserError where programs cannot be run with limits.
    """
    if os.name != "posix":
        raise UserError("run_code: programs can be run with limits only on Linux and macOS", key="run_code")
    tests = tests or Trial("", "")
    seconds = WALL * limits.seconds
    order = {
        "seconds": math.ceil(limits.seconds),
        "memory": limits.memory,
        "wall": seconds,
        # Made and removed by the watcher.
        "folder": os.path.join(tempfile.gettempdir(), f"{PREFIX}{secrets.token_hex(8)}"),
        "source": source,
        "entry_point": tests.entry_point,
    }
    judged = {"setup": tests.setup, "tests": tests.source, "entry_point": tests.entry_point}
    return _verdict(_watched([order, judged], seconds), limits, seconds)


@functools.cache
def held() -> tuple[str, ...]:
    """What confines programs on this machine, as an empty one tells."""
    return run("", Limits(seconds=5)).held


def _watched(messages: list[dict[str, Any]], seconds: float) -> bytes:
    """What the watcher says. Nothing of it is left."""
    watcher = subprocess.Popen(
        [sys.executable, "-s", "-S", "-c", _BEGIN, _ROOT, tempfile.gettempdir()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # Hashes decide the order of sets: the same program must pass or fail every time.
        env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    try:
        # Its input stays open as long as an answer is wanted: when it closes, the watcher clears up and ends.
        with contextlib.suppress(BrokenPipeError):
            for message in messages:
                data = json.dumps(message).encode()
                watcher.stdin.write(len(data).to_bytes(8, "big") + data)
            watcher.stdin.flush()
        return _until_closed(watcher.stdout.fileno(), seconds + CLEARING)
    finally:
        with contextlib.suppress(BrokenPipeError):
            watcher.stdin.close()
        watcher.stdout.close()
        _await(watcher)


def _until_closed(reader: int, seconds: float) -> bytes:
    """Everything that is written to the pipe, or what came within the time."""
    said, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        said += piece
    return said


def _await(watcher: subprocess.Popen[bytes]) -> None:
    try:
        watcher.wait(CLEARING)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(watcher.pid, signal.SIGKILL)
        watcher.wait()


def _verdict(said: bytes, limits: Limits, seconds: float) -> SandboxVerdict:
    try:
        told = json.loads(said)
    except ValueError:
        return SandboxVerdict("not run: the process that watches over programs ended")
    held = tuple(told["held"])
    if "lost" not in told:
        return SandboxVerdict(told["error"], held)
    status = told.get("status")
    if told["lost"] == "late":
        return SandboxVerdict(f"not done after {seconds:g} s", held)
    if status in (-signal.SIGKILL, -signal.SIGXCPU):
        return SandboxVerdict(f"more than {limits.seconds:g} s of processor time", held)
    how = "what it said makes no sense" if told["lost"] == "garbled" else f"exit status {status}"
    return SandboxVerdict(f"ended before its end ({how})", held)
