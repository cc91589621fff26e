"""Part ``change``: how fast the controller finds its way after the round trip changed, to four times of what it was and
back.

One edge with the controller goes through the changes. After each it has 50 rounds (drafts with their verdicts, or
messages of streamed tokens) that are not counted. Then its rate is compared with those of every mode and fixed length,
which others measure on paths that do not change.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.split.grid import AUTO, FIRST_TOKENS, contestants
from bench.split.paced import Paced
from bench.split.scene import Client, Known, drafting_verifier, floats, pace, relay
from ianvs_specdec.backends.split.edge.connection import Access

ROUNDS = 50
FACTOR = 4


def add_arguments(add: Any) -> None:
    add("--round-trips", type=floats, default=[16, 40], metavar="MS,MS", help="before the change (16,40)")
    add("--acceptances", type=floats, default=[0.8, 0.95], metavar="A,A", help="of the edge's drafts (0.8,0.95)")
    add("--draft-ms", type=float, default=4.0, metavar="MS", help="the edge's time to draft a token (4)")
    add("--beside", type=floats, default=[0.3, 1], metavar="A,K", help="the verifier's own drafts: acceptance, length")
    add("--scale", type=float, default=4.0, metavar="X", help="by which the cost table's times are stretched (4)")
    add("--tokens", type=int, default=120, metavar="N", help="of an answer (120)")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows = []
    known = Known.made(folder, 2, options.tokens)
    with drafting_verifier(known, options.beside, options.scale) as address:
        for acceptance in options.acceptances:
            for near in options.round_trips:
                rows += _measured(near, acceptance, address, known, options)
                print("\n".join(map(_line, rows[-3:])), flush=True)
    return {"rows": rows}


def _measured(
    near: float, acceptance: float, address: str, known: Known, options: argparse.Namespace
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    prompts = known.prompts
    drafter = Paced(str(known.truth), acceptance, options.draft_ms / 1e3)
    with ExitStack() as stack:
        moving = stack.enter_context(relay(address, {"delay": f"{near / 2}ms"}))
        auto = stack.enter_context(Client(Access(moving.address), drafter.fork(), mode="auto"))
        steady: dict[float, dict[str, Client]] = {}
        for way in (near, FACTOR * near):
            link = stack.enter_context(relay(address, {"delay": f"{way / 2}ms"}))
            steady[way] = {
                name: stack.enter_context(Client(Access(link.address), drafter.fork(), **how))
                for name, how in contestants().items()
                if name != AUTO
            }
            for client in steady[way].values():
                client.decode(prompts[0], FIRST_TOKENS)
        for way in (near, FACTOR * near, near):
            moving.move(way / 2e3)
            _rounds(auto, prompts[0], options.tokens)
            answer = auto.decode(prompts[1], options.tokens)
            tokens, seconds = pace(answer)
            runs = {name: pace(client.decode(prompts[1], options.tokens)) for name, client in steady[way].items()}
            best = max(runs, key=lambda name: runs[name][0] / runs[name][1])
            row = {"acceptance": acceptance, "way": way, "rate": tokens / seconds, "best": best}
            best_rate = runs[best][0] / runs[best][1]
            rows.append(row | {"best_rate": best_rate, "streamed": answer.streamed / len(answer.token_ids)})
    return rows


def _rounds(client: Client, prompt: list[int], tokens: int) -> None:
    """Let so many rounds pass, as near as whole answers of this length come to it."""
    done = 0
    while done < ROUNDS:
        answer = client.decode(prompt, min(tokens, 4 * (ROUNDS - done)))
        done += len(answer.trace.chunks)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['acceptance']:>5g}{row['way']:>8g}{row['rate']:>9.1f}{row['streamed']:>8.2f}"
    return f"{head}{row['best_rate']:>9.1f}  {row['best']:<9}{row['rate'] / row['best_rate']:>6.3f}"


def table(report: dict[str, Any]) -> str:
    heads = f"{'a':>5}{'ms':>8}{'auto':>9}{'stream':>8}{'best':>9}"
    return "\n".join([heads, *map(_line, report["rows"])])
