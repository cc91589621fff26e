"""Part ``grid``: the controller against every mode and every fixed length in hindsight, by round trip, bandwidth and
quality of the edge's drafts.

The verifier's steps take what a cost table says, and the edge's drafts what is set, so that neither this machine nor
its other work decides. At each point all take turns on the same prompts. The controller keeps what it learned at the
point's first prompts, which are not counted.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from bench.split.scene import Truth, decode, drafting_verifier, edge, endless_target, floats, questions, truth_of

LENGTHS = (1, 2, 4, 8, 12)
AUTO, STREAMED, SHARE = "auto", "streamed", "streamed share"
FIRST_TOKENS, FIRST_ANSWERS = 8, 2
"""What is decoded first and not counted: so many tokens, and by the controller so many whole answers."""


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
    fixed = {f"split {length}": {"length": f"fixed:{length}", "mode": "split"} for length in LENGTHS}
    return {AUTO: {"mode": "auto"}, STREAMED: {"mode": "stream"}, **fixed}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    target = endless_target(folder / "target")
    asked = questions(options.prompts + 1)
    truth = truth_of(target, asked, options.tokens + 1, folder / "truth.jsonl")
    print(_heads(), flush=True)
    with ExitStack() as stack:
        addresses: SimpleQueue[str] = SimpleQueue()
        for number in range(options.at_once):
            running = drafting_verifier(truth, target, options.beside, options.scale, number)
            addresses.put(stack.enter_context(running))

        def measured(place: tuple[float, float, float]) -> dict[str, Any]:
            address = addresses.get()
            acceptance, bandwidth, way = place
            pace = {"right": acceptance, "seconds": options.draft_ms / 1e3}
            drafter = {"method": "paced", "truth": str(truth.file), **pace}
            link = {"delay": f"{way / 2}ms", "up": f"{bandwidth}mbit", "down": f"{bandwidth}mbit"}
            point: dict[str, Any] = {"way": way, "bandwidth": bandwidth, "acceptance": acceptance}
            point["rates"] = _rates(target, address, drafter, link, truth, options)
            addresses.put(address)
            print(_line(point), flush=True)
            return point

        with ThreadPoolExecutor(options.at_once) as pool:
            places = itertools.product(options.acceptances, options.bandwidths, options.round_trips)
            return {"points": list(pool.map(measured, places))}


def _rates(
    target: Path, address: str, drafter: dict[str, Any], link: dict[str, Any], truth: Truth, options: argparse.Namespace
) -> dict[str, float]:
    """Tokens a second of each contestant, of all its answers without their first tokens."""
    tokens, seconds = dict.fromkeys(contestants(), 0), dict.fromkeys(contestants(), 0.0)
    streamed = emitted = 0
    with ExitStack() as stack:
        edges = {
            name: stack.enter_context(edge(target, address, {**drafter, **own}, link))
            for name, own in contestants().items()
        }
        for name, llm in edges.items():
            # Connections are made, and the controller has seen what it works with.
            for _ in range(FIRST_ANSWERS if name == AUTO else 1):
                decode(llm, truth.questions[0], options.tokens if name == AUTO else FIRST_TOKENS)
        order = list(edges)
        for turn in range(options.repeats * options.prompts):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                answer = decode(edges[name], truth.questions[1 + turn % options.prompts], options.tokens)
                chunks = answer.trace.chunks
                tokens[name] += sum(count for _, count in chunks[1:])
                seconds[name] += chunks[-1][0] - chunks[0][0]
                if name == AUTO and answer.trace.split is not None:
                    streamed, emitted = streamed + answer.trace.split.streamed, emitted + len(answer.token_ids)
    return {name: tokens[name] / seconds[name] for name in edges} | {SHARE: streamed / max(1, emitted)}


def _heads() -> str:
    cells = "".join(f"{name.replace('split', 'k ='):>9}" for name in contestants())
    return f"{'ms':>6}{'Mbit':>7}{'a':>6}{cells}{'stream':>7}  {'best':<9}{'/best':>6}{'/str.':>7}"


def _line(point: dict[str, Any]) -> str:
    rates, others = point["rates"], _others(point["rates"])
    best = max(others, key=lambda name: others[name])
    cells = "".join(f"{rate:>9.1f}" for rate in (rates[AUTO], *others.values()))
    head = f"{point['way']:>6g}{point['bandwidth']:>7g}{point['acceptance']:>6g}{cells}{rates[SHARE]:>7.2f}"
    return f"{head}  {best:<9}{rates[AUTO] / others[best]:>6.3f}{rates[AUTO] / rates[STREAMED]:>7.2f}"


def _others(rates: dict[str, float]) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if name not in (AUTO, SHARE)}


def table(report: dict[str, Any]) -> str:
    all_rates: Sequence[dict[str, float]] = [point["rates"] for point in report["points"]]
    of_best = [rates[AUTO] / max(_others(rates).values()) for rates in all_rates]
    of_streamed = [rates[AUTO] / rates[STREAMED] for rates in all_rates]
    return (
        f"auto to the best in hindsight: least {min(of_best):.3f}, median {median(of_best):.3f}, "
        f"{sum(share >= 0.97 for share in of_best)} of {len(of_best)} from 0.97; "
        f"to streamed: least {min(of_streamed):.3f}"
    )
