"""Our server's metrics during a round, from samples of its ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.load.arrivals import LEAD_IN
from ianvs_specdec.load.rounds import Round

RATIOS = {
    "acceptance_rate": ("engine_accepted_tokens_total", "engine_drafted_tokens_total"),
    "mean_accepted_tokens": ("engine_emitted_tokens_total", "engine_verifications_total"),
    "work_amplification": ("engine_verified_tokens_total", "engine_emitted_tokens_total"),
    "draft_length": ("engine_drafted_tokens_total", "engine_verifications_total"),
}
"""Per name: two counters, whose increases are divided. They are defined as the leaderboard's columns are."""
DIGITS = 4


Told = tuple[float, Mapping[str, float]]
"""Seconds since the first request could come, and what the server counts."""


def told(rounds: Sequence[Round], warmup: float, duration: float) -> dict[str, Any]:
    """``RATIOS`` and the mean and greatest ``queue`` and ``sequences`` between the end of the warm-up and the end of
    the arrivals, of all rounds together; None for other servers than ours."""
    windows = [[now for now in _known(one) if warmup <= now[0] <= duration] for one in rounds]
    windows = [inside for inside in windows if len(inside) > 1]
    if not windows:
        return dict.fromkeys((*RATIOS, "queue", "sequences"))
    found: dict[str, Any] = {name: _ratio(name, [(one[0], one[-1]) for one in windows]) for name in RATIOS}
    for name, read in (("queue", _queue), ("sequences", lambda server: server.get("sequences", 0.0))):
        values = [read(server) for inside in windows for _, server in inside]
        found[name] = {"mean": round(sum(values) / len(values), DIGITS), "max": max(values)}
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
