"""Entry point of the ``ianvs`` command, before further imports."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command. Until the run starts, Ctrl-C and SIGTERM end the process at once: a KeyboardInterrupt during an
    import may become any other error."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    # All answers stay in memory: with Python's defaults, garbage collection takes a tenth of the time of a replay.
    gc.set_threshold(20_000, 50, 100)
    try:
        from core.cmd.benchmarking import main as run

        return run()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in ("core", "sedna", "None"):
            raise
        print(f"ianvs: the package {package} is not installed: pip install -r requirements.txt", file=sys.stderr)
        return 2


def _end(number: int, frame: FrameType | None) -> None:
    from core.cmd.interrupt import exit_code

    print("ianvs: interrupted; no test case was running", file=sys.stderr, flush=True)
    os._exit(exit_code(number))


if __name__ == "__main__":
    sys.exit(main())
