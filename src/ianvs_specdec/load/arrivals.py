"""Arrival times and prompts of requests. They are generated once per rate, so all policies get the same requests.

A file of arrivals has guidellm's fields, one JSON object per line: ``relative_timestamp`` (seconds since guidellm
began, from ``LEAD_IN`` on), ``messages`` and ``output_tokens_count`` (maximum tokens of the answer).

Traces are Azure's (LLM inference 2023, CSV) with TIMESTAMP (date and time), ContextTokens and GeneratedTokens, or
Mooncake's (JSON lines) with timestamp (milliseconds), input_length and output_length; other keys are ignored.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import read_csv_lines, read_json_lines, with_header
from ianvs_specdec.benchmarks.rows import normalize_row, parse_query
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
        chats.append(messages_of(parse_query(*normalize_row(row, None, where), str(number), where), ()))
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


AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
MAX_GAP = 0.5
"""Maximum share of a trace without a request. A larger gap is missing data or a wrong date, and scaling would compress
the rest into one burst."""
MIN_FOR_GAP = 10
"""Requests from which a gap is an error: smaller traces may have one by chance."""
MILLISECONDS = 1000.0


def read_trace(path: Path) -> list[Arrival]:
    """Read a trace, ``.csv`` or ``.jsonl`` (also ``.gz``). Raises UserError with file and line for other columns, empty
    cells, negative or decreasing times, and large gaps."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if kind == "csv":
        found = list(_azure(path))
    elif kind == "jsonl":
        found = list(_mooncake(path))
    else:
        raise UserError(f"{path}: a trace is a .csv file (Azure) or a .jsonl file (Mooncake), also with .gz")
    if len(found) < 2:
        raise UserError(f"{path}: a trace has at least two requests, this one has {len(found)}")
    _check_order(found)
    begin = found[0][1].seconds
    return [Arrival(a.seconds - begin, a.prompt_tokens, a.output_tokens) for _, a in found]


def _azure(path: Path) -> Iterator[tuple[str, Arrival]]:
    rows = with_header(path, read_csv_lines(path))
    for where, row in rows:
        time, prompt, output = _columns(row, AZURE, where)
        yield where, Arrival(_clock(time, where), _count(prompt, AZURE[1], where), _count(output, AZURE[2], where))


def _mooncake(path: Path) -> Iterator[tuple[str, Arrival]]:
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        time, prompt, output = _columns(row, MOONCAKE, where)
        if isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time):
            raise UserError(f"{where}: 'timestamp' must be a number of milliseconds, not {time!r:.40}")
        if time < 0:
            raise UserError(f"{where}: 'timestamp' is negative ({time:g}): times count from the start of the trace")
        counts = _count(prompt, MOONCAKE[1], where), _count(output, MOONCAKE[2], where)
        yield where, Arrival(time / MILLISECONDS, *counts)


def _columns(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> list[Any]:
    for name in names:
        if name not in row:
            there = ", ".join(map(str, row)) or "none"
            raise UserError(f"{where}: the column {name!r} is missing; expected {', '.join(names)}; found: {there}")
        if row[name] is None or row[name] == "":
            raise UserError(f"{where}: {name!r} is empty: remove the line or fill it in")
    return [row[name] for name in names]


def _clock(text: str, where: str) -> float:
    """Seconds of a date and time such as ``2023-11-16 18:15:46.6805900``, or a number of seconds."""
    if (seconds := _number(text)) is not None:
        if seconds < 0:
            raise UserError(f"{where}: 'TIMESTAMP' is negative ({text}): times count from the start of the trace")
        return seconds
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UserError(f"{where}: 'TIMESTAMP' is not a date with a time: {text!r:.60}") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(given: Any, name: str, where: str) -> int:
    """A number of tokens, at least 1. The output of cancelled requests is 0 in traces, and counts as 1."""
    number = given if isinstance(given, int) and not isinstance(given, bool) else _number(given)
    if number is None or number != int(number):
        raise UserError(f"{where}: {name!r} must be a whole number of tokens, not {given!r:.40}")
    if number < 0:
        raise UserError(f"{where}: {name!r} is negative ({given})")
    return max(1, int(number))


def _number(text: Any) -> float | None:
    try:
        number = float(text) if isinstance(text, (str, float)) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _check_order(found: list[tuple[str, Arrival]]) -> None:
    span = found[-1][1].seconds - found[0][1].seconds
    for (_, before), (where, arrival) in pairwise(found):
        step = arrival.seconds - before.seconds
        if step < 0:
            raise UserError(f"{where}: the time goes back by {-step:g} s: sort the trace by its times")
        if step > MAX_GAP * span and len(found) >= MIN_FOR_GAP:
            raise UserError(
                f"{where}: {step:g} s without a request, more than {MAX_GAP:.0%} of the whole trace: "
                "data is missing or a time is wrong; cut the trace at the gap"
            )
    if span <= 0:
        raise UserError(f"{found[0][0]}: all requests have the same time: the trace has no rate to scale")
