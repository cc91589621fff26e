"""Part ``grid``: the controller against every mode and every fixed length in hindsight, by round trip, bandwidth and
qualities of the edge's drafts.

The verifier's steps take what a cost table says, and the edge's drafts what is set, so that neither this machine nor
its other work decides. At each point all take turns on the same prompts. The controller keeps what it learned at the
point's first prompts, which are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from bench.split.paced import Paced
from bench.split.scene import Client, Known, drafting_verifier, floats, pace, relay
from ianvs_specdec.backends.split.edge.connection import Access

LENGTHS = (1, 2, 4, 8, 12)
AUTO, STREAMED = "auto", "streamed"
FIRST_TOKENS, FIRST_ANSWERS = 8, 2
"""What is decoded first and not counted: so many tokens, and by the controller so many whole answers."""


@dataclass
class Point:
    """Seconds there and back, bits a second each way, and the acceptance of the edge's drafts."""

    way: float
    rate: float
    acceptance: float
    seen: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def path(self) -> dict[str, Any]:
        return {"delay": f"{self.way / 2}s", "up": f"{self.rate}bit", "down": f"{self.rate}bit"}

    def rates(self) -> dict[str, float]:
        """Tokens a second of each contestant: of all its answers, each at its median over the repeats."""
        return {name: sum(t for t, _ in runs) / sum(s for _, s in runs) for name, runs in self.seen.items()}


def add_arguments(add: Any) -> None:
    add("--round-trips", type=floats, default=[2, 10, 30, 80, 200], metavar="MS,MS", help="(2,10,30,80,200)")
    add("--bandwidths", type=floats, default=[0.1, 1, 100], metavar="M,M", help="Mbit/s each way (0.1,1,100)")
    add("--acceptances", type=floats, default=[0.6, 0.8, 0.95], metavar="A,A", help="of the edge's drafts")
    add("--draft-ms", type=float, default=2.0, metavar="MS", help="the edge's time to draft a token (2)")
    add("--beside", type=floats, default=[0.5, 2], metavar="A,K", help="the verifier's own drafts: acceptance, length")
    add("--scale", type=float, default=2.0, metavar="X", help="by which the cost table's times are stretched (2)")
    add("--tokens", type=int, default=120, metavar="N", help="of an answer (120)")
    add("--prompts", type=int, default=1, metavar="N")
    add("--at-once", type=int, default=3, metavar="N", help="points at a time, each with its own processes (3)")
    add("--repeats", type=int, default=1, metavar="R")


def contestants() -> dict[str, dict[str, Any]]:
    fixed = {f"split {length}": {"length": length, "mode": "split"} for length in LENGTHS}
    return {AUTO: {"mode": "auto"}, STREAMED: {"mode": "stream"}, **fixed}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    points, known = list(_points(options)), Known.made(folder, options.prompts + 1, options.tokens)
    print(_heads(), flush=True)
    with ExitStack() as stack:
        addresses: SimpleQueue[str] = SimpleQueue()
        for number in range(options.at_once):
            scene = drafting_verifier(known, options.beside, options.scale, number)
            addresses.put(stack.enter_context(scene))

        def measured(point: Point) -> None:
            address = addresses.get()
            _measured(point, address, known.prompts, known.truth, options)
            addresses.put(address)
            print(_line(point), flush=True)

        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(measured, points))
    return {"points": [{**vars(point), "rates": point.rates()} for point in points]}


def _points(options: argparse.Namespace) -> Iterator[Point]:
    for acceptance in options.acceptances:
        for rate in options.bandwidths:
            for way in options.round_trips:
                yield Point(way / 1e3, rate * 1e6, acceptance)


def _measured(point: Point, address: str, prompts: list[list[int]], truth: Path, options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        link = stack.enter_context(relay(address, point.path()))
        drafter = Paced(str(truth), point.acceptance, options.draft_ms / 1e3)
        clients = {
            name: stack.enter_context(Client(Access(link.address), drafter.fork(), **how))
            for name, how in contestants().items()
        }
        for name, client in clients.items():
            # Connections are made, and the controller has seen what it works with.
            for _ in range(FIRST_ANSWERS if name == AUTO else 1):
                client.decode(prompts[0], options.tokens if name == AUTO else FIRST_TOKENS)
        order = list(clients)
        for turn in range(options.repeats * options.prompts):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                answer = clients[name].decode(prompts[1 + turn % options.prompts], options.tokens)
                point.seen.setdefault(name, []).append(pace(answer))
                if name == AUTO:
                    point.seen.setdefault("streamed share", []).append((answer.streamed, len(answer.token_ids)))


def _heads() -> str:
    cells = "".join(f"{name.replace('split', 'k ='):>9}" for name in contestants())
    return f"{'ms':>6}{'Mbit':>7}{'a':>6}{cells}{'stream':>7}  {'best':<9}{'/best':>6}{'/str.':>7}"


def _line(point: Point) -> str:
    rates = point.rates()
    share = rates.pop("streamed share")
    auto = rates.pop(AUTO)
    best = max(rates, key=lambda name: rates[name])
    cells = "".join(f"{rates[name]:>9.1f}" for name in rates)
    head = f"{1e3 * point.way:>6g}{point.rate / 1e6:>7g}{point.acceptance:>6g}{auto:>9.1f}"
    return f"{head}{cells}{share:>7.2f}  {best:<9}{auto / rates[best]:>6.3f}{auto / rates[STREAMED]:>7.2f}"


def table(report: dict[str, Any]) -> str:
    shares = []
    for point in report["points"]:
        rates = {name: rate for name, rate in point["rates"].items() if name not in (AUTO, "streamed share")}
        shares.append((point["rates"][AUTO] / max(rates.values()), point["rates"][AUTO] / rates[STREAMED]))
    of_best, of_streamed = zip(*shares, strict=True)
    return (
        f"auto to the best in hindsight: least {min(of_best):.3f}, median {median(of_best):.3f}, "
        f"{sum(share >= 0.97 for share in of_best)} of {len(of_best)} from 0.97; "
        f"to streamed: least {min(of_streamed):.3f}"
    )
