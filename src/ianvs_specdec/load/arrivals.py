"""TODO"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.benchmarks.files import read_json_lines
from ianvs_specdec.benchmarks.rows import own_form, parsed
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message, messages_of

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


MOST = 100_000
"""Maximum requests of one rate."""
LEAD_IN = 2.0
"""Seconds before the first request can come: guidellm says that it has begun about a second before it can send."""
TICK = 1e-6
"""Seconds between two requests that come at the same time: a request is known again by when it came."""


def read_chats(path: Path) -> list[list[Message]]:
    """The chats of a data file of Ianvs, each up to the first turn's question. Raises UserError with file and line."""
    chats = []
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        if "question" not in row:
            raise UserError(f"{where}: the key 'question' is missing: each line is a question and its answer")
        chats.append(messages_of(parsed(*own_form(row, None, where), str(number), where), ()))
    if not chats:
        raise UserError(f"{path}: the file has no questions")
    return chats


def label(rate: float) -> str:
    """A rate in the name of a file: all its digits, and no ``.0``."""
    return repr(rate).removesuffix(".0")


def times(pattern: str, rate: float, duration: float, seed: int) -> list[float]:
    """Seconds at which requests come in ``duration`` seconds at ``rate`` a second on average, always the same for the
    same arguments."""
    if pattern == CONSTANT:
        return [index / rate for index in range(int(duration * rate + TICK))]
    # A text as seed gives the same numbers in every version and on every machine.
    chance = random.Random(f"{pattern} {rate!r} {seed}")
    found: list[float] = []
    now = pause(pattern, rate, chance)
    while now < duration:
        found.append(now)
        now += pause(pattern, rate, chance)
    return found


def arrivals_text(
    pattern: str,
    trace: Sequence[Arrival],
    chats: Sequence[list[Message]],
    rate: float,
    duration: float,
    seed: int,
    max_tokens: int,
) -> str:
    """A file of arrivals by a ``pattern``, or by a ``trace`` where there is one. Chats come in an order drawn from the
    seed, the same at every rate. Raises UserError where no request comes, or more than ``MOST``."""
    if rate * duration > MOST:
        raise UserError(f"{rate:g} requests a second for {duration:g} s are more than {MOST}: lower one of them")
    if trace:
        coming = scaled(trace, rate, duration)
    else:
        coming = [Arrival(second, 0, max_tokens) for second in times(pattern, rate, duration, seed)]
    if not coming:
        raise UserError(f"at {rate:g} requests a second none comes within {duration:g} s: give a longer duration")
    order = list(range(len(chats)))
    random.Random(seed).shuffle(order)
    lines, last = [], 0.0
    for index, arrival in enumerate(coming):
        last = round(max(LEAD_IN + arrival.seconds, last + TICK), 6)
        line = {
            "relative_timestamp": last,
            "messages": chats[order[index % len(order)]],
            "output_tokens_count": min(arrival.output_tokens, max_tokens),
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)
