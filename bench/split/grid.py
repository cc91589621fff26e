"""Part ``grid``: the controller compared with every mode and fixed length in hindsight, by round trip, bandwidth and
acceptance of the edge's drafts.

The verifier's step times come from a cost table, and the edge's drafting time is fixed, so that the results do not
depend on this machine. All contestants decode the same prompt. The controller's first answers at each point, from which
it learns, are not counted.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from bench.split.scene import Truth, decode, drafting_verifier, edge, endless_target, questions, truth_of

Row = dict[str, Any]
LENGTHS = (1, 2, 4, 8, 12)
ROUND_TRIPS, BANDWIDTHS = (2.0, 10.0, 30.0, 80.0, 200.0), (0.1, 1.0, 100.0)
"""Round trips in milliseconds, bandwidths in Mbit/s each way."""
ACCEPTANCES, DRAFT_SECONDS = (0.6, 0.8, 0.95), 2e-3
"""Acceptance of the edge's drafts, and seconds per drafted token."""
TOKENS = 120
AT_ONCE = 3
"""Concurrent points, each with its own processes."""
AUTO, STREAMED, SHARE = "auto", "streamed", "streamed share"
FIRST_TOKENS, FIRST_ANSWERS = 8, 2
"""Warm-up: tokens of the other contestants, answers of the controller."""


def contestants() -> dict[str, dict[str, Any]]:
    fixed = {f"split {length}": {"length": f"fixed:{length}", "mode": "split"} for length in LENGTHS}
    return {AUTO: {"mode": "auto"}, STREAMED: {"mode": "stream"}, **fixed}


HEADS = ("ms", "Mbit/s", "accept.", *contestants(), SHARE, "best", "auto/best", "auto/streamed")


def measure(_: argparse.Namespace, folder: Path) -> Iterator[Row]:
    target = endless_target(folder / "target")
    truth = truth_of(target, questions(2), TOKENS + 1, folder / "truth.jsonl")
    with ExitStack() as stack:
        addresses: SimpleQueue[str] = SimpleQueue()
        for number in range(AT_ONCE):
            addresses.put(stack.enter_context(drafting_verifier(truth, target, number)))

        def measured(place: tuple[float, float, float]) -> Row:
            address = addresses.get()
            acceptance, bandwidth, way = place
            pace = {"right": acceptance, "seconds": DRAFT_SECONDS}
            drafter = {"method": "paced", "truth": str(truth.file), **pace}
            link = {"delay": f"{way / 2}ms", "up": f"{bandwidth}mbit", "down": f"{bandwidth}mbit"}
            rates = _rates(target, address, drafter, link, truth)
            addresses.put(address)
            return {"way": way, "bandwidth": bandwidth, "acceptance": acceptance, "rates": rates}

        with ThreadPoolExecutor(AT_ONCE) as pool:
            places = itertools.product(ACCEPTANCES, BANDWIDTHS, ROUND_TRIPS)
            yield from pool.map(measured, places)


def _rates(target: Path, address: str, drafter: dict[str, Any], link: dict[str, Any], truth: Truth) -> dict[str, float]:
    """Tokens per second of each contestant's answer, without its first chunk."""
    rates: dict[str, float] = {}
    first, question = truth.questions
    with ExitStack() as stack:
        edges = {
            name: stack.enter_context(edge(target, address, {**drafter, **own}, link))
            for name, own in contestants().items()
        }
        for name, llm in edges.items():
            # Connect, and let the controller learn.
            for _ in range(FIRST_ANSWERS if name == AUTO else 1):
                decode(llm, first, TOKENS if name == AUTO else FIRST_TOKENS)
        for name, llm in edges.items():
            answer = decode(llm, question, TOKENS)
            chunks = answer.trace.chunks
            rates[name] = sum(count for _, count in chunks[1:]) / (chunks[-1][0] - chunks[0][0])
            if name == AUTO and answer.trace.split is not None:
                rates[SHARE] = answer.trace.split.streamed / max(1, len(answer.token_ids))
    return {SHARE: 0.0, **rates}


def cells(row: Row) -> list[str]:
    rates, others = row["rates"], _others(row["rates"])
    best = max(others, key=lambda name: others[name])
    place = [f"{row[name]:g}" for name in ("way", "bandwidth", "acceptance")]
    shown = [f"{rate:.1f}" for rate in (rates[AUTO], *others.values())]
    ratios = [f"{rates[AUTO] / others[best]:.3f}", f"{rates[AUTO] / rates[STREAMED]:.2f}"]
    return [*place, *shown, f"{rates[SHARE]:.2f}", best, *ratios]


def _others(rates: dict[str, float]) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if name not in (AUTO, SHARE)}


def summary(rows: Sequence[Row]) -> str:
    of_best = [row["rates"][AUTO] / max(_others(row["rates"]).values()) for row in rows]
    of_streamed = [row["rates"][AUTO] / row["rates"][STREAMED] for row in rows]
    return (
        f"auto / best in hindsight: least {min(of_best):.3f}, median {median(of_best):.3f}, "
        f"{sum(share >= 0.97 for share in of_best)} of {len(of_best)} from 0.97; "
        f"auto / streamed: least {min(of_streamed):.3f}"
    )
