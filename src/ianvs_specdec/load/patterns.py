"""When requests come, where users do not wait for each other: the pauses between them, or the times of a trace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ianvs_specdec.common.errors import UserError

POISSON, BURSTY, CONSTANT = "poisson", "bursty", "constant"
PATTERNS = (POISSON, BURSTY, CONSTANT)
BURST_SHAPE = 0.25
"""Shape of the gamma distribution of pauses: their standard deviation is twice their mean (Poisson: shape 1)."""


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: ``seconds`` since the first one, and its tokens."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


def pause(pattern: str, rate: float, chance: random.Random) -> float:
    """Seconds to the next request of a ``pattern`` with ``rate`` requests a second on average."""
    if pattern == CONSTANT:
        return 1 / rate
    shape = BURST_SHAPE if pattern == BURSTY else 1.0
    return chance.gammavariate(shape, 1 / (shape * rate))


def scaled(trace: Sequence[Arrival], rate: float, duration: float) -> list[Arrival]:
    """The first requests of a trace, as many as come in ``duration`` at ``rate``, stretched or squeezed to that time.
    Raises UserError where the trace has too few."""
    wanted = round(rate * duration)
    if wanted > len(trace):
        raise UserError(
            f"the trace has {len(trace)} requests, and {rate:g}/s for {duration:g} s are {wanted}: "
            "give a longer trace, a shorter duration or lower rates"
        )
    if wanted < 1:
        return []
    chosen = trace[:wanted]
    # Up to the request after them, since a pause belongs to the request before it.
    after = trace[wanted].seconds if wanted < len(trace) else None
    span = chosen[-1].seconds * wanted / max(1, wanted - 1) if after is None else after
    if span <= 0:
        raise UserError(f"the first {wanted} requests of the trace have the same time: give a higher rate or duration")
    return [Arrival(one.seconds * duration / span, one.prompt_tokens, one.output_tokens) for one in chosen]
