"""Part ``capacity``: many edges on one verifier beside as many clients of batched plain decoding, and of batched
speculation beside the target.

All over the same path. In the regime ``stated`` the verifier's steps and its own drafts take what a cost table says; in
``own`` what they take here, so that the edges' work on the same processor is in it: it shows the overhead, and no gain
is to be had where rows are not free. Times of path and edge are in milliseconds of the table, stretched as it is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.split.paced import Paced
from bench.split.scene import (
    COSTS,
    PACED,
    PROMPT_TOKENS,
    Client,
    decoded,
    endless_target,
    floats,
    random_prompts,
    relay,
    verifier,
)
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.engine.costs import CostTable, read
from ianvs_specdec.net.split.breakeven import round_tokens, shared_rate

PLAIN, BESIDE, SPLIT = "autoregressive", "beside the target", "split"
REGIMES = ("stated", "own")
LONGEST = 16


@dataclass
class Arm:
    """A contestant: its clients, and for each batch its tokens a second and the seconds per token of each answer."""

    name: str
    length: int
    clients: list[Client]
    rates: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)


def add_arguments(add: Any) -> None:
    add("--sessions", type=int, default=16, metavar="N", help="edges at a time (16)")
    add("--acceptances", type=floats, default=[0.8, 0.9], metavar="A,A", help="of all drafts (0.8,0.9)")
    add("--regimes", type=lambda text: text.split(","), default=list(REGIMES), metavar="R,R", help="(stated,own)")
    add("--way-ms", type=float, default=5.0, metavar="MS", help="round trip (5)")
    add("--draft-ms", type=float, default=1.0, metavar="MS", help="an edge's time to draft a token (1)")
    add("--scale", type=float, default=10.0, metavar="X", help="by which the table's times are stretched (10)")
    add("--tokens", type=int, default=120, metavar="N", help="of an answer (120)")
    add("--batches", type=int, default=2, metavar="N")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    target, prompts = endless_target(folder / "target"), random_prompts(options.sessions)
    truth = folder / "truth.jsonl"
    decoded(target, prompts, options.tokens + 1, truth)
    rows = []
    for regime in options.regimes:
        for acceptance in options.acceptances:
            rows += _measured(regime, acceptance, target, prompts, str(truth), options)
            print("\n".join(map(_line, rows[-3:])), flush=True)
    return {"rows": rows}


def _measured(
    regime: str, acceptance: float, target: Path, prompts: list[list[int]], truth: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    costs, scale = read(COSTS), options.scale
    stated = {"emulate": str(COSTS), "emulate_scale": scale} if regime == "stated" else {}
    own = max(range(1, LONGEST), key=lambda length: _beside(costs, options, length, acceptance))
    drafting = {"truth": truth, "acceptance": acceptance, "most": own}
    beside = {"backend": "SpecDec", "drafter": f"{PACED}:Paced", "drafter_options": drafting, "--length": "full"}
    told = {
        PLAIN: options.sessions / (costs.step_seconds(options.sessions, *_held(options)) * scale),
        BESIDE: _beside(costs, options, own, acceptance) / scale,
    }
    length = max(range(1, LONGEST), key=lambda length: _split(costs, options, length, acceptance))
    told[SPLIT] = _split(costs, options, length, acceptance) / scale
    with ExitStack() as stack:
        arms = []
        for name, settings, k in ((PLAIN, stated, 0), (BESIDE, stated | beside, own), (SPLIT, stated, length)):
            address = stack.enter_context(verifier(Path(truth).parent, target, settings))
            link = stack.enter_context(relay(address, {"delay": f"{options.way_ms * scale / 2}ms"}))
            drafter = Paced(truth, acceptance, options.draft_ms * scale / 1e3)
            mode = "split" if name == SPLIT else "stream"
            clients = [
                stack.enter_context(Client(Access(link.address), drafter.fork(), k or None, mode)) for _ in prompts
            ]
            arms.append(Arm(name, k, clients))
        with ThreadPoolExecutor(len(prompts)) as pool:
            for batch in range(-1, options.batches):
                for arm in arms:
                    _serve(arm, pool.map, prompts, options.tokens if batch >= 0 else 8, counted=batch >= 0)
    plain = float(np.median(arms[0].rates))
    return [
        {
            "regime": regime,
            "acceptance": acceptance,
            "name": arm.name,
            "length": arm.length,
            "rate": float(np.median(arm.rates)),
            "p95": float(np.percentile(arm.paces, 95)),
            "to_plain": float(np.median(arm.rates)) / plain,
            "told": told[arm.name] / told[PLAIN] if stated else None,
        }
        for arm in arms
    ]


def _serve(arm: Arm, run: Callable[..., Any], prompts: Sequence[list[int]], tokens: int, counted: bool) -> None:
    """All clients at a time. The rate is that of the time in which all of them had their first and none its last
    tokens: what an engine does with fewer is not asked."""

    def one(client: Client, prompt: list[int]) -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        client.decode(prompt, tokens, on_tokens=lambda more: seen.append((time.perf_counter(), len(more))))
        return seen

    runs = list(run(one, arm.clients, prompts))
    if counted:
        begin, end = max(seen[0][0] for seen in runs), min(seen[-1][0] for seen in runs)
        emitted = sum(count for seen in runs for at, count in seen if begin < at <= end)
        arm.rates.append(emitted / (end - begin))
        arm.paces += [(seen[-1][0] - seen[0][0]) / sum(count for _, count in seen[1:]) for seen in runs]


def _held(options: argparse.Namespace) -> tuple[int, int]:
    """Tokens of context in all, in the middle of the answers, and sessions."""
    return options.sessions * (PROMPT_TOKENS + options.tokens // 2), options.sessions


def _beside(costs: CostTable, options: argparse.Namespace, length: int, acceptance: float) -> float:
    """Tokens a second of the table's time."""
    sessions = options.sessions
    step = costs.step_seconds(sessions * (length + 1), *_held(options))
    return sessions * round_tokens(length, acceptance) / (step + costs.draft_seconds([length] * sessions))


def _split(costs: CostTable, options: argparse.Namespace, length: int, acceptance: float) -> float:
    return shared_rate(
        options.sessions,
        length,
        acceptance,
        way=options.way_ms / 1e3,
        step=lambda rows: costs.step_seconds(rows, *_held(options)),
        draft=options.draft_ms / 1e3,
        in_flight=4,
    )


def _line(row: dict[str, Any]) -> str:
    told = "" if row["told"] is None else f"{row['told']:>9.2f}{row['to_plain'] / row['told']:>8.2f}"
    head = f"{row['regime']:<8}{row['acceptance']:>5g}  {row['name']:<18}{row['length']:>4}{row['rate']:>9.1f}"
    return f"{head}{1e3 * row['p95']:>9.1f}{row['to_plain']:>16.2f}{told}"


def table(report: dict[str, Any]) -> str:
    what = f"{'regime':<8}{'a':>5}  {'':<18}{'k':>4}{'tok/s':>9}{'p95 ms':>9}"
    heads = f"{what}{'/autoregressive':>16}{'formula':>9}{'share':>8}"
    return "\n".join([heads, *map(_line, report["rows"])])
