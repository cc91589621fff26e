"""Arrival times and prompts of requests. They are generated once per rate, so all policies get the same requests.

A file of arrivals has guidellm's fields, one JSON object per line: ``relative_timestamp`` (seconds since guidellm
began, from ``LEAD_IN`` on), ``messages`` and ``output_tokens_count`` (maximum tokens of the answer).
"""

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
MAX_REQUESTS = 100_000
"""Per rate."""
LEAD_IN = 2.0
"""Seconds before the first request: guidellm reports its start about a second before it can send."""
MIN_PAUSE = 1e-6
"""Seconds between two requests: the time of a request identifies it."""


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: ``seconds`` since the first one, and its token counts."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


def pause(pattern: str, rate: float, rng: random.Random) -> float:
    """Seconds to the next request of a ``pattern`` at a mean ``rate`` per second."""
    if pattern == CONSTANT:
        return 1 / rate
    shape = BURST_SHAPE if pattern == BURSTY else 1.0
    return rng.gammavariate(shape, 1 / (shape * rate))


def scaled(trace: Sequence[Arrival], rate: float, duration: float) -> list[Arrival]:
    """The first ``rate * duration`` requests of a trace, with their times scaled to ``duration``. Raises UserError if
    the trace is too short."""
    wanted = round(rate * duration)
    if wanted > len(trace):
        raise UserError(
            f"the trace has {len(trace)} requests, and {rate:g}/s for {duration:g} s are {wanted}: "
            "give a longer trace, a shorter duration or lower rates"
        )
    if wanted < 1:
        return []
    selected = trace[:wanted]
    # To the next request: each pause belongs to the request before it.
    after = trace[wanted].seconds if wanted < len(trace) else None
    span = selected[-1].seconds * wanted / max(1, wanted - 1) if after is None else after
    if span <= 0:
        raise UserError(f"the first {wanted} requests of the trace have the same time: give a higher rate or duration")
    return [Arrival(one.seconds * duration / span, one.prompt_tokens, one.output_tokens) for one in selected]


def read_chats(path: Path) -> list[list[Message]]:
    """The first turns of a data file of Ianvs as chats. Raises UserError with file and line."""
    chats = []
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        if "question" not in row:
            raise UserError(f"{where}: the key 'question' is missing: each line is a question and its answer")
        chats.append(messages_of(parsed(*own_form(row, None, where), str(number), where), ()))
    if not chats:
        raise UserError(f"{path}: the file has no questions")
    return chats


def rate_label(rate: float) -> str:
    """A rate as part of a file name, with all digits."""
    return repr(rate).removesuffix(".0")


def arrival_times(pattern: str, rate: float, duration: float, seed: int) -> list[float]:
    """Arrival times in ``duration`` seconds; the same arguments give the same times."""
    if pattern == CONSTANT:
        return [index / rate for index in range(int(duration * rate + MIN_PAUSE))]
    # String seeds are stable across versions and machines.
    rng = random.Random(f"{pattern} {rate!r} {seed}")
    times: list[float] = []
    now = pause(pattern, rate, rng)
    while now < duration:
        times.append(now)
        now += pause(pattern, rate, rng)
    return times


def arrivals_text(
    pattern: str,
    trace: Sequence[Arrival],
    chats: Sequence[list[Message]],
    rate: float,
    duration: float,
    seed: int,
    max_tokens: int,
) -> str:
    """A file of arrivals by ``trace``, or by ``pattern`` if it is empty. ``seed`` shuffles the chats, equally at all
    rates. Raises UserError for no requests, or more than ``MAX_REQUESTS``."""
    if rate * duration > MAX_REQUESTS:
        raise UserError(f"{rate:g} requests per second for {duration:g} s are more than {MAX_REQUESTS}: lower them")
    if trace:
        arrivals = scaled(trace, rate, duration)
    else:
        arrivals = [Arrival(second, 0, max_tokens) for second in arrival_times(pattern, rate, duration, seed)]
    if not arrivals:
        raise UserError(f"no request at {rate:g} per second within {duration:g} s: give a longer duration")
    order = list(range(len(chats)))
    random.Random(seed).shuffle(order)
    lines, last = [], 0.0
    for index, arrival in enumerate(arrivals):
        last = round(max(LEAD_IN + arrival.seconds, last + MIN_PAUSE), 6)
        line = {
            "relative_timestamp": last,
            "messages": chats[order[index % len(order)]],
            "output_tokens_count": min(arrival.output_tokens, max_tokens),
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)
