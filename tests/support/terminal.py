"""Run a command on a pseudo-terminal."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

LONGEST = 120.0
"""Timeout of a command in seconds."""


def on_terminal(command: Sequence[str], columns: int, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code, and everything that was written to the terminal."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    there = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, cwd=folder, env={**there, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:  # Linux reports the closed other end as an error
        pass
    os.close(ours)
    try:
        return process.wait(LONGEST), seen.decode("utf-8", "replace")
    finally:
        process.kill()


def lines_of(text: str) -> list[str]:
    """All lines that were on the screen at some time, including overwritten ones."""
    return [line.removesuffix("\x1b[A").strip("\r") for line in text.replace("\r", "\n").split("\n") if line.strip()]
