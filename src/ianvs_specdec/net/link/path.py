"""Properties of a network path: delay, jitter, bandwidth, loss, outages; presets, and parsing of texts with units."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import MAX_COUNT
from ianvs_specdec.common.settings import STRICT, described_as, validated

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
"""Units as in Linux's ``tc``."""
UNLIMITED = "unlimited"
QUEUE = 0.1
"""Seconds: the rule of thumb for a router's buffer is the bandwidth times a round trip of 100 ms (RFC 3439)."""
MAX_DELAY = 60.0
"""Seconds: more is a mistaken unit."""
MAX_OUTAGE = 7 * 86400.0
"""Seconds of an outage or between two: more is a mistaken unit."""
MIN_RATE, MAX_RATE = 1e3, 1e12
"""Bits per second."""
HOLD: Literal["hold"] = "hold"
CUT: Literal["cut"] = "cut"
"""Effect of an outage on connections: they stay open, or both ends get a reset when it begins."""
OUTAGE_FORMS = "10s/120s (10 s of every 120 s), random:10s/120s (the same on average) or 10s@30s (once, after 30 s)"
NO_PRESET = "none"
PRESETS: Mapping[str, Mapping[str, str]] = {
    NO_PRESET: {},
    "lan": {"delay": "0.15ms", "jitter": "0.05ms", "up": "1gbit", "down": "1gbit"},
    "fibre": {"delay": "5ms", "jitter": "0.5ms", "up": "100mbit", "down": "300mbit"},
    "lte": {"delay": "25ms", "jitter": "5ms", "up": "9mbit", "down": "27mbit", "loss": "0.1%"},
    "5g": {"delay": "15ms", "jitter": "3ms", "up": "21mbit", "down": "166mbit", "loss": "0.05%"},
    "satellite-leo": {"delay": "25ms", "jitter": "5ms", "up": "17mbit", "down": "178mbit", "loss": "0.4%"},
    "satellite-geo": {"delay": "300ms", "jitter": "10ms", "up": "10mbit", "down": "100mbit", "loss": "0.1%"},
}
"""Name -> options of a path. docs/link.md lists the sources."""
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-z%]*)\s*")
_OUTAGE = re.compile(r"(random:)?([^/@]+)([/@])([^/@]+)")

Time = Annotated[float, Field(ge=0, le=MAX_DELAY), described_as(f"from 0 to {MAX_DELAY:g} s")]
Rate = Annotated[float, Field(ge=MIN_RATE, le=MAX_RATE), described_as("from 1kbit to 1000gbit (a second)")]
Loss = Annotated[
    float, Field(ge=0, lt=1), described_as("from 0 % to below 100 % (--outage is for a path on which nothing passes)")
]


@dataclass(frozen=True, config=STRICT)
class Schedule:
    """Outages of ``length`` seconds: at the end of every ``period``, or once ``after`` that many seconds.

    ``random``: up times and outages are drawn from exponential distributions with these means.
    """

    length: float = 0.0
    period: float | None = None
    after: float | None = None
    random: bool = False

    def __str__(self) -> str:
        if not self.length:
            return "none"
        separator, other = ("@", self.after) if self.period is None else ("/", self.period)
        return f"{'random:' if self.random else ''}{self.length:g}s{separator}{other:g}s"


NO_OUTAGES = Schedule()


@dataclass(frozen=True, config=STRICT)
class Path:
    """One-way times in seconds; rates in bits per second, None = unlimited; ``loss``: probability per segment.

    ``jitter``: the delay is uniform between ``delay - jitter`` and ``delay + jitter``. ``queue``: maximum waiting time
    of a segment on the access link. ``on_outage``: HOLD or CUT.
    """

    delay: Time = 0.0
    jitter: Time = 0.0
    up: Rate | None = None
    down: Rate | None = None
    loss: Loss = 0.0
    queue: Time = QUEUE
    outage: Schedule = NO_OUTAGES
    on_outage: Literal["hold", "cut"] = HOLD
    seed: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    preset: str = NO_PRESET

    def __post_init__(self) -> None:
        if self.jitter > self.delay:
            reason = f"jitter ({self.jitter:g} s) must not exceed the delay ({self.delay:g} s)"
            raise UserError(f"{reason}: nothing arrives before it was sent", key="jitter")

    @property
    def round_trip(self) -> float:
        """Seconds, without queueing and jitter."""
        return 2 * self.delay

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Path:
        """Parse texts with units. The values of ``preset`` are the defaults. Raises UserError with the key."""
        own = {name: value for name, value in dict(values).items() if value is not None}
        if (preset := own.get("preset", NO_PRESET)) not in PRESETS:
            raise unknown("preset", preset, PRESETS, key="preset")
        given = {**PRESETS[preset], **own}
        read = {name: PARSERS[name](value, name) if name in PARSERS else value for name, value in given.items()}
        return validated(cls, read, "option of a path")

    def to_json(self) -> dict[str, Any]:
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "outage": str(self.outage)}


def _seconds(value: Any, key: str) -> float:
    return _quantity(value, key, SECONDS, "25ms or 0.5s")


def _bits(value: Any, key: str) -> float | None:
    if value == UNLIMITED:
        return None
    text = value.removesuffix("/s") if isinstance(value, str) else value
    return _quantity(text, key, BITS, f"10mbit or {UNLIMITED}")


def _share(value: Any, key: str) -> float:
    return _quantity(value, key, {"%": 0.01}, "0.5%")


def _outage(value: Any, key: str) -> Schedule:
    if value in ("none", 0):
        return NO_OUTAGES
    found = _OUTAGE.fullmatch(str(value).strip())
    if found is None or (found[1] and found[3] == "@"):
        raise UserError(f"{key} must be written as {OUTAGE_FORMS}, not {value!r:.60}", key=key)
    length, other = _seconds(found[2], key), _seconds(found[4], key)
    if not 0 < length <= MAX_OUTAGE or not 0 <= other <= MAX_OUTAGE:
        raise UserError(f"{key} must be from more than 0 s to {MAX_OUTAGE:g} s, not {value}", key=key)
    if found[3] == "@":
        return Schedule(length, after=other)
    if length >= other:
        reason = f"the outage must be shorter than its period; write it as {OUTAGE_FORMS}"
        raise UserError(f"{key} {value}: {reason}", key=key)
    return Schedule(length, period=other, random=bool(found[1]))


def _quantity(value: Any, key: str, units: Mapping[str, float], example: str) -> float:
    """The number of a text with a unit; only 0 needs no unit."""
    given = _QUANTITY.fullmatch(str(value).lower())
    try:
        if given is None or isinstance(value, bool):
            raise ValueError
        number = float(given[1])
        factor = units.get(given[2]) if number or given[2] else 1.0
    except ValueError:
        factor = None
    if factor is None:
        raise UserError(f"{key} must be written as {example}, not {value!r:.60}", key=key)
    return number * factor


def _integer(value: Any, key: str) -> Any:
    """An integer given as text on the command line; other values are validated with the fields."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


PARSERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("delay", "jitter", "queue"), _seconds),
    **dict.fromkeys(("up", "down"), _bits),
    "loss": _share,
    "outage": _outage,
    "seed": _integer,
}
