"""The first step of the ``ianvs`` command: a Ctrl-C while nothing runs yet ends it as quietly as one later."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command. Until a run takes Ctrl-C over, there is nothing to clean up, and the process ends at once: an
    exception in the middle of somebody's import comes out as anything but an interruption."""
    signal.signal(signal.SIGINT, _end)
    from core.cmd.benchmarking import main as run

    return run()


def _end(number: int, frame: FrameType | None) -> None:
    from core.cmd.interrupt import EXIT_CODE

    print("ianvs: interrupted; no test case was running", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)
