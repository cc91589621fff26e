"""Processes that are started here: what they said last, and the processor time of one with all that it has started."""

from __future__ import annotations

import os
from pathlib import Path

LAST = 4096
"""Bytes at the end of what a process printed, in which its last line is looked for."""


def last_words(log: Path) -> str:
    """The last line that is not empty, "" where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def processor_seconds(pid: int) -> float | None:
    """Processor time of a running process and those below it that still run; None where the system does not tell (it
    is Linux that does) or the process has ended."""
    try:
        own = _ticks(pid)
        below = [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in _children(pid, task)]
    except (OSError, ValueError, IndexError):
        return None
    return own / os.sysconf("SC_CLK_TCK") + sum(processor_seconds(child) or 0.0 for child in below)


def _ticks(pid: int) -> int:
    # The name of a program, in brackets, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    user, system = fields[11:13]
    return int(user) + int(system)


def _children(pid: int, task: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split()
