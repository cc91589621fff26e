"""Our server's metrics during a round, from samples of its ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ianvs_specdec.load.arrivals import LEAD_IN
from ianvs_specdec.load.rounds import Round

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


Told = tuple[float, Mapping[str, float]]
"""Seconds since the first request could come, and what the server counts."""


def told(rounds: Sequence[Round], warmup: float, duration: float) -> dict[str, Any]:
    """``RATIOS`` and the mean and greatest ``queue`` and ``sequences`` between the end of the warm-up and the end of
    the arrivals, of all rounds together; and all of it ``over_time``, with the round's ``repeat`` and the ``seconds``
    since its first request could come. None for a server that does not tell."""
    by_round = {one.place.repeat: _known(one) for one in rounds}
    windows = [[now for now in known if warmup <= now[0] <= duration] for known in by_round.values()]
    windows = [inside for inside in windows if len(inside) > 1]
    if not windows:
        return dict.fromkeys((*RATIOS, "queue", "sequences", "over_time"))
    found: dict[str, Any] = {name: _ratio(name, [(one[0], one[-1]) for one in windows]) for name in RATIOS}
    for name, read in (("queue", _queue), ("sequences", _sequences)):
        values = [read(server) for inside in windows for _, server in inside]
        found[name] = {"mean": round(sum(values) / len(values), DIGITS), "max": max(values)}
    found["over_time"] = [
        {
            "repeat": repeat,
            "seconds": round(now[0], 3),
            "queue": _queue(now[1]),
            "sequences": _sequences(now[1]),
            **{name: _ratio(name, [(before, now)]) for name in (LENGTH, ACCEPTANCE)},
        }
        for repeat, known in by_round.items()
        for before, now in pairwise(known)
        if now[0] >= 0
    ]
    return found


def _known(round_: Round) -> list[Told]:
    begin = round_.begin + LEAD_IN
    return [
        (one.at - begin, one.server)
        for one in round_.samples
        if one.server and "engine_verifications_total" in one.server
    ]


def _ratio(name: str, spans: Sequence[tuple[Told, Told]]) -> float | None:
    above, below = (sum(after[1][one] - before[1][one] for before, after in spans) for one in RATIOS[name])
    return round(above / below, DIGITS) if below else None


def _queue(server: Mapping[str, float]) -> float:
    """Requests that wait, before the engine and in it."""
    return server.get("queue_length", 0.0) + server.get("waiting_for_room", 0.0)


def _sequences(server: Mapping[str, float]) -> float:
    return server.get("sequences", 0.0)
