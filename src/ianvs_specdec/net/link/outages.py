"""When nothing passes: outages at stated times, at random ones, and those that somebody calls for."""

from __future__ import annotations

import math
import re
from bisect import bisect_right, insort
from dataclasses import dataclass
from random import Random
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import units

RANDOM = "random:"
LONGEST = 7 * 86400.0
"""Seconds of an outage or between two: more is a mistaken unit."""
FORMS = "10s/120s (10 s of every 120 s), random:10s/120s (the same on average) or 10s@30s (once, after 30 s)"
_FORM = re.compile(r"(random:)?([^/@]+)([/@])([^/@]+)")


@dataclass(frozen=True)
class Schedule:
    """``length`` seconds without a path in every ``period``, the first after ``period - length``, or once ``after``.
    ``random``: times up and times down are drawn from exponential distributions with these means.
    """

    length: float = 0.0
    period: float | None = None
    after: float | None = None
    random: bool = False

    def __str__(self) -> str:
        if not self.length:
            return "none"
        way, other = ("@", self.after) if self.period is None else ("/", self.period)
        return f"{RANDOM if self.random else ''}{self.length:g}s{way}{other:g}s"


NO_OUTAGES = Schedule()


def parse(value: Any, key: str) -> Schedule:
    """Of a text in one of ``FORMS``. Raises UserError with the ``key``."""
    if value in ("none", 0):
        return NO_OUTAGES
    found = _FORM.fullmatch(str(value).strip())
    if found is None or (found[1] and found[3] == "@"):
        raise UserError(f"{key} must be written as {FORMS}, not {value!r:.60}", key=key)
    length, other = units.seconds(found[2], key), units.seconds(found[4], key)
    if not 0 < length <= LONGEST or not 0 <= other <= LONGEST:
        raise UserError(f"{key} must be from more than 0 s to {LONGEST:g} s, not {value}", key=key)
    if found[3] == "@":
        return Schedule(length, after=other)
    if length >= other:
        raise UserError(f"{key} {value}: the outage must be shorter than its period; write it as {FORMS}", key=key)
    return Schedule(length, period=other, random=bool(found[1]))


class Outages:
    """Those of one link, by its clock. They are made as far ahead as somebody asks, always the same with one seed."""

    def __init__(self, schedule: Schedule, seed: int, began: float) -> None:
        """``began``: the clock's time when the link did."""
        self._schedule, self._chance = schedule, Random(f"outages {seed}")
        self._until = began
        self._known: list[tuple[float, float]] = []
        """Begin and end, in order; no two overlap."""
        if schedule.length and schedule.period is None:
            assert schedule.after is not None
            self._known.append((began + schedule.after, began + schedule.after + schedule.length))

    def call(self, begin: float, length: float) -> None:
        """One more, from ``begin``."""
        self._add(begin, begin + length)

    def end_of(self, moment: float) -> float | None:
        """When the outage at this moment ends; None where there is none."""
        self._make(moment)
        place = bisect_right(self._known, (moment, math.inf)) - 1
        return end if place >= 0 and (end := self._known[place][1]) > moment else None

    def after(self, moment: float) -> float | None:
        """When the next outage after this moment begins, as far as is known."""
        if self._schedule.period is not None:
            self._make(moment + self._schedule.period)
            while not self._known or self._known[-1][0] <= moment:
                self._make(self._until + self._schedule.period)
        place = bisect_right(self._known, (moment, math.inf))
        return self._known[place][0] if place < len(self._known) else None

    def over(self, moment: float) -> list[tuple[float, float]]:
        """Those that began before this moment."""
        return [one for one in self._known if one[0] < moment]

    def _make(self, until: float) -> None:
        if (period := self._schedule.period) is None:
            return
        up = period - self._schedule.length
        while self._until <= until:
            begin = self._until + (self._chance.expovariate(1 / up) if self._schedule.random else up)
            length = self._schedule.length
            end = begin + (self._chance.expovariate(1 / length) if self._schedule.random else length)
            self._add(begin, end)
            self._until = end

    def _add(self, begin: float, end: float) -> None:
        touching = [one for one in self._known if one[0] <= end and begin <= one[1]]
        for one in touching:
            self._known.remove(one)
        insort(self._known, (min([begin, *(one[0] for one in touching)]), max([end, *(one[1] for one in touching)])))
