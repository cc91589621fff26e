"""Processes that are started here: what they printed last, their processor time, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

LAST = 4096
"""Bytes at the end of a log in which its last line is looked for."""


def last_words(log: Path) -> str:
    """The last line that is not empty, "" where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def processor_seconds(pid: int) -> float | None:
    """Processor time of a running process and those below it that still run; None where it has ended."""
    import psutil

    spent = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                spent.append(process.cpu_times())
    return sum(times.user + times.system for times in spent) if spent else None


def end(process: subprocess.Popen[Any], seconds: float) -> None:
    """End the process with its whole group, whose other members would outlive it: by SIGTERM, and by SIGKILL after
    ``seconds``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
