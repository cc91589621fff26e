"""When requests come and what they ask: written once for each rate, so that all policies see the same to the byte.

A file of arrivals has guidellm's fields, one JSON object per line: ``relative_timestamp`` (seconds since guidellm
began, from ``LEAD_IN`` on), ``messages`` and ``output_tokens_count`` (the longest answer).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from ianvs_specdec.benchmarks.files import read_json_lines
from ianvs_specdec.benchmarks.rows import normalize_row, parse_query
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message, messages_of
from ianvs_specdec.load.patterns import CONSTANT, Arrival, pause, scaled

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
        chats.append(messages_of(parse_query(*normalize_row(row, None, where), str(number), where), ()))
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
