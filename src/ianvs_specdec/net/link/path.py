"""What a network path is like: delay, jitter, bandwidth, loss, outages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import LARGEST_COUNT
from ianvs_specdec.net.link import units
from ianvs_specdec.net.link.outages import NO_OUTAGES, Schedule, parse
from ianvs_specdec.net.link.presets import NONE, PRESETS

QUEUE = 0.1
"""Seconds: the rule of thumb for a router's buffer is the bandwidth times a round trip of 100 ms (RFC 3439)."""
LONGEST = 60.0
"""Seconds: more is a mistaken unit."""
SLOWEST, FASTEST = 1e3, 1e12
"""Bits a second."""
HOLD, CUT = "hold", "cut"
"""What becomes of connections in an outage: they stay, or both ends get a reset when it begins."""


@dataclass(frozen=True)
class Path:
    """Times in seconds, one way; rates in bits a second, None: unlimited; ``loss`` a probability for each segment.

    ``jitter``: the delay is drawn evenly from ``delay - jitter`` to ``delay + jitter``. ``queue``: how long a segment
    waits at most for those before it on the access link. ``on_outage``: HOLD or CUT. Raises UserError with the key.
    """

    delay: float = 0.0
    jitter: float = 0.0
    up: float | None = None
    down: float | None = None
    loss: float = 0.0
    queue: float = QUEUE
    outage: Schedule = NO_OUTAGES
    on_outage: str = HOLD
    seed: int = 0
    preset: str = NONE

    def __post_init__(self) -> None:
        for name in ("delay", "jitter", "queue"):
            if not 0 <= (value := getattr(self, name)) <= LONGEST:
                raise UserError(f"{name} must be from 0 to {LONGEST:g} s, not {value:g} s", key=name)
        if self.jitter > self.delay:
            told = f"jitter ({self.jitter:g} s) must not exceed the delay ({self.delay:g} s)"
            raise UserError(f"{told}: nothing arrives before it was sent", key="jitter")
        for name in ("up", "down"):
            if (rate := getattr(self, name)) is not None and not SLOWEST <= rate <= FASTEST:
                raise UserError(f"{name} must be from 1kbit to 1000gbit (a second), not {rate:g} bit", key=name)
        if not 0 <= self.loss < 1:
            told = f"loss must be from 0 % to below 100 %, not {100 * self.loss:g} %"
            raise UserError(f"{told}; --outage is for a path on which nothing passes", key="loss")
        if self.on_outage not in (HOLD, CUT):
            raise unknown("on_outage", self.on_outage, (HOLD, CUT), key="on_outage")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= LARGEST_COUNT:
            raise UserError(f"seed must be a whole number from 0, not {self.seed!r:.60}", key="seed")

    @property
    def round_trip(self) -> float:
        """Seconds there and back, without waiting for others and with no jitter."""
        return 2 * self.delay

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Path:
        """Of texts with units. ``preset`` names others that hold where none is given. Raises UserError with the key."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown("option of a path", name, known, key=str(name))
        given = {name: value for name, value in values.items() if value is not None}
        if (preset := given.get("preset", NONE)) not in PRESETS:
            raise unknown("preset", preset, PRESETS, key="preset")
        readers: dict[str, Callable[[Any, str], Any]] = {
            "delay": units.seconds,
            "jitter": units.seconds,
            "queue": units.seconds,
            "up": units.bits,
            "down": units.bits,
            "loss": units.share,
            "outage": parse,
            "seed": _whole,
        }
        merged = {**PRESETS[preset], **given}
        return cls(**{name: readers.get(name, _text)(value, name) for name, value in merged.items()})

    def to_json(self) -> dict[str, Any]:
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "outage": str(self.outage)}


def _text(value: Any, key: str) -> str:
    return str(value)


def _whole(value: Any, key: str) -> int:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number == int(number)):
        raise UserError(f"{key} must be a whole number from 0, not {value!r:.60}", key=key)
    return int(number)
