"""Run a model's Python program in a separate process with limits.

As in the evaluation harness of HumanEval (Chen et al. 2021), program and tests run in one process with limits on time,
memory and files, without this environment's packages and variables. With bubblewrap, the process also has no network,
sees no other process, and reads only the libraries of the system and of Python.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.common.errors import UserError

WALL = 10
"""Wall-clock limit per second of processor time: generous, so that other processes do not make a program fail."""
LONGEST_VERDICT = 1 << 16
"""Maximum size of the verdict and any other file in bytes."""
BWRAP, LIMITS = "bwrap", "limits"

_CHILD = Path(__file__).with_name("sandboxed_program.py")
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time and bytes of address space."""

    seconds: float
    memory: int = 1 << 30


def run(source: str, limits: Limits) -> str:
    """Run a program and return the reason of its failure, "" if it ended without an exception. Raises UserError if
    limits are not supported."""
    if os.name != "posix":
        raise UserError("run_code: programs can be run with limits only on Linux and macOS", key="run_code")
    return _run(source, limits, _bwrap())


def confinement() -> tuple[str, ...]:
    """The isolation of programs on this machine."""
    return (BWRAP, LIMITS) if _bwrap() else (LIMITS,)


@functools.cache
def _bwrap() -> tuple[str, ...]:
    """The command line of bubblewrap; empty if it is missing or does not work, as in many containers."""
    path = shutil.which("bwrap") if sys.platform == "linux" else None
    if path is None:
        return ()
    command = [path, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for folder in (*_SYSTEM, sys.base_prefix):
        command += ["--ro-bind-try", folder, folder]
    return () if _run("", Limits(seconds=5), tuple(command)) else tuple(command)


def _run(source: str, limits: Limits, bwrap: tuple[str, ...]) -> str:
    token, wall = secrets.token_hex(16), WALL * limits.seconds
    job = {
        "source": source,
        "token": token,
        "seconds": math.ceil(limits.seconds),
        "wall": wall,
        "memory": limits.memory,
        "file_size": LONGEST_VERDICT,
    }
    command = [*bwrap, os.path.realpath(sys.executable), "-s", "-S", "-c", _CHILD.read_text(encoding="utf-8")]
    with tempfile.TemporaryDirectory(prefix="specdec-program-") as folder, tempfile.TemporaryFile() as verdict:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=verdict,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            # A fixed seed: results must not depend on the order of sets.
            env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(job).encode(), timeout=wall)
        except subprocess.TimeoutExpired:
            return f"not done after {wall:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verdict.seek(0)
        return _reason(verdict.read(LONGEST_VERDICT), token, process.returncode, limits)


def _reason(said: bytes, token: str, status: int, limits: Limits) -> str:
    with contextlib.suppress(ValueError):
        verdict = json.loads(said)
        if isinstance(verdict, dict) and verdict.get("token") == token:
            return str(verdict["error"])
    # bubblewrap reports a signal as a shell does.
    if status in {sign for kill in (signal.SIGKILL, signal.SIGXCPU) for sign in (-kill, 128 + kill)}:
        return f"more than {limits.seconds:g} s of processor time"
    return f"exited early (exit status {status})"
