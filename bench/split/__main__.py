"""``python -m bench.split PART``: split decoding between real processes, over emulated paths between real sockets."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.command import command
from bench.environment import environment
from ianvs_specdec.records.identity import write_atomically

PARTS = ("bytes", "lossless", "grid", "change", "ahead", "capacity", "kill", "tightwad")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.split", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name in PARTS:
        about = importlib.import_module(f"bench.split.{name}")
        summary = (about.__doc__ or "").partition(":")[2].strip()
        part = parts.add_parser(name, help=summary.partition(".")[0], description=summary)
        about.add_arguments(part.add_argument)
        part.add_argument("--out", type=Path, default=Path("runs") / "bench", metavar="DIR", help="(runs/bench)")
    options = parser.parse_args(argv)
    part = importlib.import_module(f"bench.split.{options.part}")
    # Processes are not to stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def measured() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="bench-split-") as folder:
            return {"environment": environment(), "options": vars(options), **part.measure(options, Path(folder))}

    def write(out: Path, report: dict[str, Any]) -> list[Path]:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"split-{options.part}.json"
        write_atomically(path, json.dumps(report, indent=1, default=str) + "\n")
        return [path]

    return command(f"bench.split {options.part}", measured, options.out, part.table, write)


if __name__ == "__main__":
    sys.exit(main())
