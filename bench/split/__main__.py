"""``python -m bench.split PART``: split decoding between real processes, over emulated paths between real sockets.

A part has ``measure(options, folder)``, which yields rows; ``cells(row)`` under ``HEADS``; and ``summary(rows)``.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from pathlib import Path

from bench.command import Report, columns, command, environment, to_json

PARTS = ("bytes", "lossless", "grid", "kill")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.split", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name in PARTS:
        about = importlib.import_module(f"bench.split.{name}")
        summary = (about.__doc__ or "").partition(":")[2].strip()
        own = parts.add_parser(name, help=summary.partition(".")[0], description=summary)
        if hasattr(about, "add_arguments"):
            about.add_arguments(own.add_argument)
        own.add_argument("--out", type=Path, default=Path("runs") / "bench", metavar="DIR", help="(runs/bench)")
    options = parser.parse_args(argv)
    part = importlib.import_module(f"bench.split.{options.part}")
    # Exit handlers end the child processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def measured() -> Report:
        importlib.import_module("bench.split.scene").register_paced()
        rows = []
        with tempfile.TemporaryDirectory(prefix="bench-split-") as folder:
            for row in part.measure(options, Path(folder)):
                print("  ".join(part.cells(row)), file=sys.stderr, flush=True)
                rows.append(row)
        return {"environment": environment(), "options": vars(options), "rows": rows}

    def table(report: Report) -> str:
        rows = report["rows"]
        return "\n".join([*columns(part.HEADS, list(map(part.cells, rows))), part.summary(rows)])

    files = {f"split-{options.part}.json": to_json}
    return command(f"bench.split {options.part}", measured, options.out, table, files)


if __name__ == "__main__":
    sys.exit(main())
