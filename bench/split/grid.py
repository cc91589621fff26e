"""Part ``grid``: the controller against every mode and every fixed length in hindsight, by round trip, bandwidth and
quality of the edge's drafts.

The verifier's steps take the times of a cost table, and the edge's drafts a fixed time, so that neither this machine
nor its other work decides. At each point all decode the same prompt. The controller keeps what it learned at the
point's first answers, which are not counted.
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

from bench.split.scene import Truth, decode, drafting_verifier, edge, endless_target, questions, truth_of

LENGTHS = (1, 2, 4, 8, 12)
ROUND_TRIPS, BANDWIDTHS = (2.0, 10.0, 30.0, 80.0, 200.0), (0.1, 1.0, 100.0)
"""Milliseconds, and Mbit/s each way."""
ACCEPTANCES, DRAFT_SECONDS = (0.6, 0.8, 0.95), 2e-3
"""Of the edge's drafts, and its time for a token of them."""
TOKENS = 120
"""Of an answer."""
AT_ONCE = 3
"""Points at a time, each with its own processes."""
AUTO, STREAMED, SHARE = "auto", "streamed", "streamed share"
FIRST_TOKENS, FIRST_ANSWERS = 8, 2
"""Decoded before anything is counted: tokens of the other contestants, whole answers of the controller."""


def contestants() -> dict[str, dict[str, Any]]:
    fixed = {f"split {length}": {"length": f"fixed:{length}", "mode": "split"} for length in LENGTHS}
    return {AUTO: {"mode": "auto"}, STREAMED: {"mode": "stream"}, **fixed}


def measure(_: argparse.Namespace, folder: Path) -> dict[str, Any]:
    target = endless_target(folder / "target")
    truth = truth_of(target, questions(2), TOKENS + 1, folder / "truth.jsonl")
    print(_heads(), flush=True)
    with ExitStack() as stack:
        addresses: SimpleQueue[str] = SimpleQueue()
        for number in range(AT_ONCE):
            addresses.put(stack.enter_context(drafting_verifier(truth, target, number)))

        def measured(place: tuple[float, float, float]) -> dict[str, Any]:
            address = addresses.get()
            acceptance, bandwidth, way = place
            pace = {"right": acceptance, "seconds": DRAFT_SECONDS}
            drafter = {"method": "paced", "truth": str(truth.file), **pace}
            link = {"delay": f"{way / 2}ms", "up": f"{bandwidth}mbit", "down": f"{bandwidth}mbit"}
            point: dict[str, Any] = {"way": way, "bandwidth": bandwidth, "acceptance": acceptance}
            point["rates"] = _rates(target, address, drafter, link, truth)
            addresses.put(address)
            print(_line(point), flush=True)
            return point

        with ThreadPoolExecutor(AT_ONCE) as pool:
            places = itertools.product(ACCEPTANCES, BANDWIDTHS, ROUND_TRIPS)
            return {"points": list(pool.map(measured, places))}


def _rates(target: Path, address: str, drafter: dict[str, Any], link: dict[str, Any], truth: Truth) -> dict[str, float]:
    """Tokens a second of each contestant's answer, without its first tokens."""
    rates: dict[str, float] = {}
    first, question = truth.questions
    with ExitStack() as stack:
        edges = {
            name: stack.enter_context(edge(target, address, {**drafter, **own}, link))
            for name, own in contestants().items()
        }
        for name, llm in edges.items():
            # Connections are made, and the controller has seen what it works with.
            for _ in range(FIRST_ANSWERS if name == AUTO else 1):
                decode(llm, first, TOKENS if name == AUTO else FIRST_TOKENS)
        for name, llm in edges.items():
            answer = decode(llm, question, TOKENS)
            chunks = answer.trace.chunks
            rates[name] = sum(count for _, count in chunks[1:]) / (chunks[-1][0] - chunks[0][0])
            if name == AUTO and answer.trace.split is not None:
                rates[SHARE] = answer.trace.split.streamed / max(1, len(answer.token_ids))
    return {SHARE: 0.0, **rates}


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
