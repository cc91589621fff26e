"""Run a Python program of unknown origin with limits, and learn whether it came to its end.

It runs in a process of its own, without the packages of this environment, its environment variables and its network;
with limits on processor time, memory and processes; it cannot write files, start programs or send signals; when its
time is over, everything that it started is killed. ``sandboxed.py`` is the part that runs in that process.

Against accidents, not attacks: what a program of ill will does needs a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.errors import UserError

WALL = 10
"""Seconds on the clock for each second of processor time: other processes must not decide whether a program passes."""

VERDICT_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time, and bytes of address space."""

    seconds: float
    memory: int = 1 << 30


def run(source: str, limits: Limits) -> str:
    """Run a program; "" if it came to its end without an exception, else why not. Raises UserError where programs
    cannot be run with limits.
    """
    if os.name != "posix":
        raise UserError("run_code: programs can be run with limits only on Linux and macOS", key="run_code")
    # A program that ends the process itself says nothing; one that guesses the token does not do so by accident.
    token = secrets.token_hex(16)
    order = {"source": source, "token": token, "seconds": math.ceil(limits.seconds), "memory": limits.memory}
    seconds = WALL * limits.seconds
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as said:
        try:
            with tempfile.TemporaryDirectory(prefix="specdec-program-", ignore_cleanup_errors=True) as folder:
                status = _status(json.dumps(order), writer, folder, seconds)
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        return _verdict(said.read(VERDICT_BYTES) or b"", token, status, limits, seconds)


def _status(order: str, writer: int, folder: str, seconds: float) -> int | None:
    """The exit status, None if time ran out. Nothing of the process group is left."""
    process = subprocess.Popen(
        [sys.executable, "-s", "-S", "-c", _sandboxed(), str(writer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        # Hashes decide the order of sets: the same program must pass or fail every time.
        env={"HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        pass_fds=(writer,),
        start_new_session=True,
    )
    try:
        process.communicate(order.encode("utf-8", "surrogatepass"), timeout=seconds)
        return process.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@functools.cache
def _sandboxed() -> str:
    return Path(__file__).with_name("sandboxed.py").read_text(encoding="utf-8")


def _verdict(said: bytes, token: str, status: int | None, limits: Limits, seconds: float) -> str:
    try:
        verdict = json.loads(said)
        if verdict["token"] == token:
            return str(verdict["error"])
    except (ValueError, TypeError, KeyError):
        pass
    if status is None:
        return f"not done after {seconds:g} s"
    if status in (-signal.SIGKILL, -signal.SIGXCPU):
        return f"more than {limits.seconds:g} s of processor time"
    return f"ended before its end (exit status {status})"
