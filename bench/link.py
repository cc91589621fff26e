"""``python -m bench.link``: whether `specdec link` does what each preset says, and what the relay itself costs.

For each path: the round trip of small messages (and while another connection sends all it can), the throughput each
way, the share of lost segments, and how many deliveries were late by the emulation's own fault. Server, relay and
client are processes of their own. "says" is twice the delay; the bandwidth less headers, or what the loss leaves of it
by Mathis's formula; the stated loss. Repeats are interleaved, and medians are shown.

--kernel puts the kernel's own TCP (Reno) over the same path beside it, between two network namespaces: over netem, or
over packets that another process delays and loses one by one. It needs root, `ip` and `tc`. There nothing has jitter,
since netem would reorder.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import command
from bench.environment import environment
from bench.link_kernel import TOLD, Kernel, offered
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.net.link.line import HEADERS, SEGMENT
from ianvs_specdec.net.link.presets import PRESETS
from ianvs_specdec.net.link.tcp import LARGEST_WINDOW
from ianvs_specdec.records.identity import write_atomically

DIRECT = "direct"
SPECDEC = (sys.executable, "-m", "ianvs_specdec", "link", "--listen", "127.0.0.1:0")
REALTIME = ("chrt", "-r", "1")
ENDS = (sys.executable, "-m", "bench.link_ends")


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    # Processes and network namespaces are not to stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return command("bench.link", lambda: _run(options), options.out, _table, _write)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.link", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--presets", type=lambda text: text.split(","), default=list(PRESETS), metavar="A,B", help="only these")
    add("--seconds", type=float, default=4.0, metavar="S", help="of each of four measurements (4)")
    add("--repeats", type=int, default=3, metavar="R")
    add("--realtime", action="store_true", help="the relay runs before other processes (chrt; needs root)")
    add("--kernel", action="store_true", help="beside the kernel's own emulation")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR")
    options = parser.parse_args(argv)
    if wrong := [name for name in options.presets if name not in PRESETS]:
        parser.error(f"unknown preset {wrong[0]!r}; there are {', '.join(PRESETS)}")
    if options.seconds <= 0 or options.repeats < 1:
        parser.error("--seconds must be more than 0, --repeats at least 1")
    return options


def _run(options: argparse.Namespace) -> dict[str, Any]:
    paths = {name: NetworkPath.parse({"preset": name}) for name in options.presets}
    kind = offered() if options.kernel else ""
    if kind:
        paths = {name: replace(path, jitter=0.0) for name, path in paths.items() if path.delay}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(options.repeats):
        if not kind:
            with serving() as server:
                rows.setdefault((DIRECT, ""), []).append(measured(server, options.seconds))
        for name, path in paths.items():
            path = replace(path, seed=number)
            rows.setdefault((name, "relay"), []).append(_relayed(path, options.seconds, options.realtime))
            if kind:
                with Kernel(path, kind, _options(path)) as kernel, serving(kernel.there, kernel.host) as server:
                    rows.setdefault((name, "kernel"), []).append(measured(server, options.seconds, kernel.here))
    return {
        "environment": environment(),
        "kernel": TOLD.get(kind, ""),
        "seconds": options.seconds,
        "rows": [
            {"path": name, "by": by, "says": says(paths[name]) if name in paths else {}, "runs": runs}
            for (name, by), runs in rows.items()
        ],
    }


def says(path: NetworkPath) -> dict[str, float]:
    """What may be expected of a path: seconds, bytes a second, a share. What has no bound is left out."""
    found = {"p50": path.round_trip, "first": 2 * path.round_trip, "loss": path.loss}
    for way, rate in (("up", path.up), ("down", path.down)):
        bounds = [] if rate is None else [rate / 8 * SEGMENT / (SEGMENT + HEADERS)]
        if path.round_trip:
            bounds.append(LARGEST_WINDOW / path.round_trip)
        if path.loss and path.round_trip:
            bounds.append(SEGMENT / path.round_trip * math.sqrt(1.5 / path.loss))
        if bounds:
            found[way] = min(bounds)
    return found


@contextmanager
def serving(prefix: Sequence[str] = (), host: str = "127.0.0.1") -> Iterator[str]:
    """Address of a server; ``prefix``: what its command begins with."""
    with subprocess.Popen([*prefix, *ENDS, "serve", host], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"{host}:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def measured(address: str, seconds: float, prefix: Sequence[str] = ()) -> dict[str, Any]:
    command = [*prefix, *ENDS, "measure", address, str(seconds)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _relayed(path: NetworkPath, seconds: float, realtime: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        file, record = Path(folder) / "path.json", Path(folder) / "record.jsonl"
        file.write_text(json.dumps(_options(path)), encoding="utf-8")
        relay = [*(REALTIME if realtime else ()), *SPECDEC, "--to", server, "-f", str(file), "--record", str(record)]
        with subprocess.Popen(relay, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                found = measured(process.stdout.readline().split()[2].rstrip(","), seconds)
            finally:
                process.terminate()
        told = json.loads(record.read_text(encoding="utf-8").splitlines()[-1])["summary"]
    ways = told["up"], told["down"]
    deliveries = sum(way["segments"] for way in ways)
    return {
        **found,
        "loss": sum(way["lost"] for way in ways) / deliveries,
        "lateness": max(way["lateness_ms"]["p95"] for way in ways) / 1000,
    }


def _options(path: NetworkPath) -> dict[str, Any]:
    """As a file has them."""
    times = {name: f"{1000 * getattr(path, name)!r}ms" for name in ("delay", "jitter", "queue")}
    rates = {name: f"{rate!r}bit" for name in ("up", "down") if (rate := getattr(path, name)) is not None}
    return {**times, **rates, "loss": f"{100 * path.loss!r}%", "seed": path.seed}


COLUMNS = (
    ("p50", "round trip ms", 1e3),
    ("up", "up Mbit/s", 8e-6),
    ("down", "down Mbit/s", 8e-6),
    ("loss", "loss %", 100),
)


def _table(report: dict[str, Any]) -> str:
    heads = "".join(f"{title:>15}{'says':>9}" for _, title, _ in COLUMNS)
    lines = [
        *([report["kernel"]] if report["kernel"] else []),
        f"{'path':<15}{'by':<8}{heads}{'p95 ms':>9}{'stream ms':>11}{'loaded ms':>11}{'first ms':>10}{'late ms':>9}",
    ]
    for row in report["rows"]:
        cells = ""
        for name, _, factor in COLUMNS:
            told = row["says"].get(name)
            cells += f"{_middle(row['runs'], name, factor):>15}{'' if told is None else f'{told * factor:.4g}':>9}"
        cells += "".join(
            f"{_middle(row['runs'], name, 1e3):>{width}}"
            for name, width in (("p95", 9), ("stream", 11), ("loaded", 11), ("first", 10), ("lateness", 9))
        )
        lines.append(f"{row['path']:<15}{row['by']:<8}{cells}".rstrip())
    lines.append(
        "stream: p99 of messages that do not wait for each other; loaded: a round trip while another connection"
    )
    lines.append("uploads; first: with the connection; late: p95 of the relay's own lateness. Where loss bounds the")
    lines.append("throughput, it is that of Mathis et al. (1997), which long transfers come down to.")
    return "\n".join(lines)


def _middle(runs: Sequence[dict[str, Any]], name: str, factor: float) -> str:
    values = [run[name] for run in runs if name in run]
    return f"{median(values) * factor:.4g}" if values else ""


def _write(out: Path, report: dict[str, Any]) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    path = out / "link.json"
    write_atomically(path, json.dumps(report, indent=1) + "\n")
    return [path]


if __name__ == "__main__":
    sys.exit(main())
