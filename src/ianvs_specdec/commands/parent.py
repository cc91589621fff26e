"""Servers that exit with their parent process, however it ends."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable

from ianvs_specdec.common.errors import UserError

READ = 4096
"""Bytes taken from standard input at a time; what they say does not matter."""


def add_argument(parser: argparse.ArgumentParser, asked: str = "") -> None:
    """``asked``: what a line on standard input brings, if anything."""
    more = f"; each line before it {asked}" if asked else ""
    parser.add_argument(
        "--exit-with-parent", action="store_true", help=f"exit when standard input, a pipe, closes{more}"
    )


def watch(asked: Callable[[], object] = lambda: None) -> None:
    """Have SIGTERM sent to this process once standard input has ended, whatever it does by then: it may be loading.
    ``asked`` is called for each line before, by a thread.

    Raises ``UserError`` for a standard input that cannot be waited for."""
    source = sys.stdin.fileno()
    mode = os.fstat(source).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(source)):
        raise UserError("--exit-with-parent: standard input must be a pipe of the parent process")

    def read() -> None:
        while data := os.read(source, READ):
            for _ in range(data.count(b"\n")):
                asked()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="parent", daemon=True).start()
