"""Public traces of arrivals: Azure's (LLM inference 2023, CSV) and Mooncake's (JSON lines).

Azure: TIMESTAMP (date and time), ContextTokens, GeneratedTokens. Mooncake: timestamp (milliseconds), input_length,
output_length; other keys are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import read_csv_lines, read_json_lines, with_header
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.arrivals import Arrival

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
LARGEST_GAP = 0.5
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
        if step > LARGEST_GAP * span and len(found) >= MIN_FOR_GAP:
            raise UserError(
                f"{where}: {step:g} s without a request, more than {LARGEST_GAP:.0%} of the whole trace: "
                "data is missing or a time is wrong; cut the trace at the gap"
            )
    if span <= 0:
        raise UserError(f"{found[0][0]}: all requests have the same time: the trace has no rate to scale")
