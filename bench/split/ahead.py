"""Part ``ahead``: drafting ahead beside stop-and-wait where the round trip is as long as drafting, and the round trip
at which splitting and streaming are equally fast, measured and by the formula.

The verifier's steps take what a cost table says, and a drafted token what is set. The formula gets what was measured in
the same runs: the tokens of a round, how many of them were drafted ahead, the verifier's time, the time to draft, and
what a message takes beyond the path. All are means of all rounds.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from bench.split.paced import SECONDS, Paced
from bench.split.scene import Client, Known, drafting_verifier, floats, relay
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.backends.split.edge.controller import Choice, Controller
from ianvs_specdec.backends.split.edge.decode import Answer
from ianvs_specdec.net.split.breakeven import LEFT, longest_way, round_rate

STREAMED, WAITING, ONE, AHEAD = "streamed", "stop-and-wait", "ahead, one outcome", "ahead"


class Means(Controller):
    """Knows the means of all that it was told, besides the latest ones by which it chooses."""

    def __init__(self, length: int | None = None, **options: Any) -> None:
        super().__init__(length, **options)
        self.told: dict[str, list[tuple[float, int]]] = {
            "draft": [],
            "service": [],
            "way": [],
            "hit": [],
            "kept": [],
            "anew": [],
        }

    def forget(self) -> None:
        """What was measured so far does not count for the means."""
        for told in self.told.values():
            told.clear()

    def drafted(self, tokens: int, seconds: float) -> None:
        super().drafted(tokens, seconds)
        self.told["draft"].append((seconds, tokens))

    def answered(
        self,
        drafted: int,
        accepted: int,
        service: float,
        way: float | None = None,
        elapsed: float | None = None,
        ahead: bool = False,
        kept: bool = False,
    ) -> None:
        super().answered(drafted, accepted, service, way, elapsed, ahead, kept)
        self.told["service"].append((service, 1))
        if way is not None:
            self.told["way"].append((way, 1))
        if elapsed is not None:
            self.told["hit" if ahead else "kept" if kept else "anew"].append((elapsed, 1))

    def mean(self, name: str) -> float:
        told = self.told[name]
        return sum(value for value, _ in told) / max(1, sum(weight for _, weight in told))


@dataclass
class Arm:
    """One contestant at one round trip: tokens and seconds of its answers, and what the formula needs."""

    name: str
    length: int | None
    way: float
    client: Client
    runs: list[tuple[int, float]] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0
    sent_ahead: int = 0
    hidden: float = 0.0
    """Drafts that were sent before the verdict before them, and the seconds that it took to draft them."""
    rounds: int = 0
    """But the first of each answer."""

    @property
    def means(self) -> Means:
        assert isinstance(self.client.controller, Means)
        return self.client.controller

    @property
    def round_tokens(self) -> float:
        """Of the rounds that ``runs`` has."""
        return sum(tokens for tokens, _ in self.runs) / (self.rounds - len(self.runs))

    @property
    def rate(self) -> float:
        return sum(tokens for tokens, _ in self.runs) / sum(seconds for _, seconds in self.runs)


def add_arguments(add: Any) -> None:
    add("--acceptances", type=floats, default=[0.8, 0.9], metavar="A,A", help="of the edge's drafts (0.8,0.9)")
    add("--length", type=int, default=4, metavar="K", help="of a draft (4)")
    add("--draft-ms", type=float, default=5.0, metavar="MS", help="the edge's time to draft a token (5)")
    add("--further-ms", type=float, default=0.0, metavar="MS", help="for each further line in a step (0)")
    add("--ways", type=floats, default=[0.5, 1, 2, 4], metavar="X,X", help="round trips, in drafts")
    add("--in-flight", type=int, default=4, metavar="N")
    add("--beside", type=floats, default=[0.3, 1], metavar="A,K", help="the verifier's own drafts: acceptance, length")
    add("--scale", type=float, default=2.0, metavar="X", help="by which the cost table's times are stretched (2)")
    add("--tokens", type=int, default=160, metavar="N", help="of an answer (160)")
    add("--prompts", type=int, default=2, metavar="N")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    known = Known.made(folder, options.prompts, options.tokens)
    with drafting_verifier(known, options.beside, options.scale) as address:
        for acceptance in options.acceptances:
            arms = _measured(acceptance, address, known, options)
            rows.append(_compared(acceptance, arms, options))
            print(_lines(rows[-1]), flush=True)
    return {"rows": rows}


def _measured(acceptance: float, address: str, known: Known, options: argparse.Namespace) -> list[Arm]:
    draft, prompts = options.draft_ms / 1e3, known.prompts
    arms: list[Arm] = []
    with ExitStack() as stack:
        for share in options.ways:
            way = share * options.length * draft
            link = stack.enter_context(relay(address, {"delay": f"{way / 2}s"}))
            for name in (STREAMED, WAITING, ONE, AHEAD):
                if name == STREAMED and share != 1:
                    continue
                for length in (options.length, None) if share == 1 and name != STREAMED else (options.length,):
                    others = () if name == ONE else SECONDS
                    further = options.further_ms / 1e3
                    truth, lines = str(known.truth), name != WAITING
                    drafter = Paced(truth, acceptance, draft, lines=lines, others=others, further=further)
                    mode: Choice = "stream" if name == STREAMED else "split"
                    client = Client(Access(link.address), drafter, length, mode, options.in_flight, controls=Means)
                    arms.append(Arm(name, length, way, stack.enter_context(client)))
        for arm in arms:
            arm.client.decode(prompts[-1], 40)
            arm.means.forget()
        for turn in range(len(prompts)):
            for arm in arms[:: 1 if turn % 2 else -1]:
                answer = arm.client.decode(prompts[turn], options.tokens)
                arm.runs.append(_steady(answer))
                arm.rounds += len(answer.trace.steps) - 1
                arm.hidden += answer.hidden
                arm.sent_ahead += len(answer.trace.steps) - answer.waits
                for step in answer.trace.steps:
                    arm.accepted += step.accepted
                    arm.rejected += step.accepted < step.drafted
    return arms


def _told(arms: Sequence[Arm]) -> dict[str, float]:
    """Means of all rounds of arms that draft alike."""
    told = {name: mean(arm.means.mean(name) for arm in arms) for name in ("service", "draft", "hit")}
    return told | {"extra": mean(arm.means.mean("way") - arm.way for arm in arms)}


def _steady(answer: Answer) -> tuple[int, float]:
    """Tokens between the first round, which always begins anew, and the last, which may have no room for its draft, and
    the seconds they took."""
    chunks = answer.trace.chunks
    return sum(count for _, count in chunks[2:-1]), chunks[-2][0] - chunks[1][0]


def _compared(acceptance: float, arms: list[Arm], options: argparse.Namespace) -> dict[str, Any]:
    length, drafted = options.length, options.length * options.draft_ms / 1e3
    streamed = next(arm.rate for arm in arms if arm.name == STREAMED)
    row: dict[str, Any] = {"acceptance": acceptance, "streamed": streamed, "arms": []}
    for name, in_flight in ((WAITING, 0), (ONE, options.in_flight), (AHEAD, options.in_flight)):
        own = [arm for arm in arms if arm.name == name]
        fixed = sorted((arm for arm in own if arm.length), key=lambda arm: arm.way)
        a = sum(arm.accepted for arm in fixed) / sum(arm.accepted + arm.rejected for arm in fixed)
        told = _told(fixed)
        under_way = Controller(in_flight=in_flight).under_way(length, a)
        times: dict[str, Any] = {"service": told["service"], "draft": told["draft"], "in_flight": under_way}
        hits, kept, anew = (sum(len(arm.means.told[kind]) for arm in fixed) for kind in ("hit", "kept", "anew"))
        hit, ready = hits / (hits + kept + anew), kept / (kept + anew)
        hidden = sum(arm.hidden for arm in fixed) / max(1, sum(arm.sent_ahead for arm in fixed))
        formula = longest_way(
            mean(arm.round_tokens for arm in fixed) / streamed,
            anew=1 - hit,
            shares=hit / max(1, under_way),
            drafting=(1 - hit) * ((1 - ready) * length + (LEFT if in_flight else 0.0)) * told["draft"],
            service=told["service"],
            hidden=hit * max(hidden, told["service"]),
        )
        row["arms"].append(
            {
                "name": name,
                **told,
                "seen": a,
                "ways": [arm.way for arm in fixed],
                "rates": [arm.rate for arm in fixed],
                "told": [round_rate(length, a, way=arm.way + told["extra"], kept=ready, **times) for arm in fixed],
                "hits": hit,
                "kept": ready,
                "hidden": hidden,
                "chosen": next(arm.rate for arm in own if not arm.length),
                "at": next(arm.rate for arm in fixed if abs(arm.way - drafted) < 1e-9),
                "break_even": crossing([arm.way for arm in fixed], [arm.rate for arm in fixed], streamed),
                "formula": formula - told["extra"],
            }
        )
    return row


def crossing(ways: Sequence[float], rates: Sequence[float], streamed: float) -> float | None:
    """Where the rate comes down to ``streamed``: the seconds per token are taken to grow evenly from one round trip to
    the next. None where it does not within ``ways``."""
    points = list(zip(ways, (1 / rate for rate in rates), strict=True))
    for (before, slow), (after, slower) in itertools.pairwise(points):
        if slow <= 1 / streamed <= slower:
            return before + (after - before) * (1 / streamed - slow) / (slower - slow)
    return None


def _lines(row: dict[str, Any]) -> str:
    waiting, *others = row["arms"]
    lines = [f"acceptance {row['acceptance']:g}: streamed {row['streamed']:.1f} token/s"]
    for arm in row["arms"]:
        cells = "".join(
            f"{1e3 * way:>7.0f}:{rate:6.1f} ({told:5.1f})"
            for way, rate, told in zip(arm["ways"], arm["rates"], arm["told"], strict=True)
        )
        even = [f"{1e3 * found:.1f}" if found else "-" for found in (arm["break_even"], max(0.0, arm["formula"]))]
        lines.append(f"  {arm['name']:<20}a={arm['seen']:.3f} hits {arm['hits']:.2f}, kept {arm['kept']:.2f}{cells}")
        times = (("step", "service"), ("a token drafted", "draft"), ("beyond the path", "extra"))
        lines.append(f"  {'':<20}{', '.join(f'{said} {1e3 * arm[name]:.1f} ms' for said, name in times)}")
        hit, hidden = 1e3 * arm["hit"], 1e3 * arm["hidden"]
        lines.append(f"  {'':<20}a round behind a hit {hit:.1f} ms, drafting for it {hidden:.1f} ms")
        lines.append(f"  {'':<20}break-even {even[0]} ms, by the formula {even[1]} ms")
    for ahead in others:
        ratios = [ahead[key] / waiting[key] for key in ("at", "chosen")]
        told = f"{ratios[0]:.2f}, each at its own length {ratios[1]:.2f}"
        lines.append(f"  {ahead['name']} to stop-and-wait where the way is a draft: {told}")
    return "\n".join(lines)


def table(report: dict[str, Any]) -> str:
    return "token/s at each round trip in ms, and by the formula in brackets"
