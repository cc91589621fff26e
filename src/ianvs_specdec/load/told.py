"""What our server told of itself during a round, by the samples of its ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ianvs_specdec.load.rounds import Sample

ACCEPTANCE, EMITTED, AMPLIFICATION, LENGTH = (
    "acceptance_rate",
    "mean_accepted_tokens",
    "work_amplification",
    "draft_length",
)
RATIOS = {
    ACCEPTANCE: ("engine_accepted_tokens_total", "engine_drafted_tokens_total"),
    EMITTED: ("engine_emitted_tokens_total", "engine_verifications_total"),
    AMPLIFICATION: ("engine_verified_tokens_total", "engine_emitted_tokens_total"),
    LENGTH: ("engine_drafted_tokens_total", "engine_verifications_total"),
}
"""Per name: two counters, whose increases are divided. They are defined as the leaderboard's columns are."""
DIGITS = 4


def told(samples: Sequence[Sample], begin: float, warmup: float, duration: float) -> dict[str, Any]:
    """``RATIOS`` and the mean and greatest ``queue`` and ``sequences`` between the end of the warm-up and the end of
    the arrivals, and all of it ``over_time``, with ``seconds`` since ``begin`` (Unix seconds), when the first request
    could come. None for a server that does not tell."""
    known = [
        (one.at - begin, one.server) for one in samples if one.server and "engine_verifications_total" in one.server
    ]
    inside = [(at, server) for at, server in known if warmup <= at <= duration]
    names = (*RATIOS, "queue", "sequences", "over_time")
    if len(inside) < 2:
        return dict.fromkeys(names)
    found: dict[str, Any] = {name: _ratio(name, inside[0][1], inside[-1][1]) for name in RATIOS}
    for name, read in (("queue", _queue), ("sequences", _sequences)):
        values = [read(server) for _, server in inside]
        found[name] = {"mean": round(sum(values) / len(values), DIGITS), "max": max(values)}
    pairs = pairwise(known)
    found["over_time"] = [
        {
            "seconds": round(at, 3),
            "queue": _queue(server),
            "sequences": _sequences(server),
            **{name: _ratio(name, before, server) for name in (LENGTH, ACCEPTANCE)},
        }
        for (_, before), (at, server) in pairs
        if at >= 0
    ]
    return found


def _ratio(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    above, below = (after[counter] - before[counter] for counter in RATIOS[name])
    return round(above / below, DIGITS) if below else None


def _queue(server: Mapping[str, float]) -> float:
    """Requests that wait, before the engine and in it."""
    return server.get("queue_length", 0.0) + server.get("waiting_for_room", 0.0)


def _sequences(server: Mapping[str, float]) -> float:
    return server.get("sequences", 0.0)
