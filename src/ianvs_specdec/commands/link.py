"""``specdec link``: relay TCP connections over an emulated network path (docs/link.md)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
from pathlib import Path

from ianvs_specdec.commands.hyperparameters import read_hyperparameters
from ianvs_specdec.commands.server_arguments import add_parent, watch_parent
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.net.link.link import Link
from ianvs_specdec.net.link.path import CUT, HOLD, OUTAGE_FORMS, PRESETS, QUEUE
from ianvs_specdec.net.link.relay import exact_loop

OPTIONS = (
    ("--preset", "NAME", f"one of: {', '.join(PRESETS)}; other options override its values"),
    ("--delay", "TIME", "one way, such as 25ms"),
    ("--jitter", "TIME", "maximum deviation from the delay"),
    ("--up", "RATE", "from the client to the target, such as 10mbit"),
    ("--down", "RATE", "from the target to the client"),
    ("--loss", "SHARE", "share of lost segments, such as 0.5%%; each arrives a round trip later"),
    ("--queue", "TIME", f"maximum queueing time of a segment (default {1000 * QUEUE:g}ms)"),
    ("--outage", "WHEN", f"nothing passes: {OUTAGE_FORMS}"),
    ("--on-outage", "WHAT", f"{HOLD} connections (default), or {CUT} them with a reset"),
    ("--seed", "N", "seed of losses, jitter and random outages (default 0)"),
)
"""Options, which are also keys of the YAML or JSON file, with underscores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help="address to listen on; port 0: any free port")
    add("--to", required=True, metavar="HOST:PORT", help="target of the connections")
    add("-f", "--file", type=Path, metavar="FILE", help="YAML or JSON file with the options below")
    for option, metavar, text in OPTIONS:
        add(option, metavar=metavar, help=text)
    add("--record", type=Path, metavar="FILE", help="JSON lines to write, one per connection")
    add_parent(parser, "prints a summary of the record so far")


def run(options: argparse.Namespace) -> int:
    named = {option: getattr(options, option[2:].replace("-", "_")) for option, _, _ in OPTIONS}
    path = read_hyperparameters(options.file, (), "", named).check(NetworkPath.parse)
    # Each connection takes two files. Some systems have a lower limit than the hard one.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        link = Link(options.to, path, options.listen, options.record)
        with asyncio.Runner(loop_factory=exact_loop) as runner:
            runner.run(_serve(link, options.to, options.exit_with_parent))
    except OSError as error:
        if options.record is None:
            raise
        reason = f"--record {options.record} cannot be written ({error.strerror or error})"
        raise UserError(f"{reason}: name a file that can be") from error
    return 0


async def _serve(link: Link, to: str, with_parent: bool) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def print_record() -> None:
        print(json.dumps(link.current_summary()), flush=True)

    def ready() -> None:
        if with_parent:
            watch_parent(lambda: loop.call_soon_threadsafe(print_record))
        print(f"listening on {link.address}, to {to}", flush=True)

    await link.run(ready, ended)
