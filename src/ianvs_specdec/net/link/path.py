"""What a network path is like: delay, jitter, bandwidth, loss, outages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import MAX_COUNT
from ianvs_specdec.common.settings import STRICT, described_as, validated
from ianvs_specdec.net.link import units
from ianvs_specdec.net.link.outages import NO_OUTAGES, Schedule, parse
from ianvs_specdec.net.link.presets import NONE, PRESETS

QUEUE = 0.1
"""Seconds: the rule of thumb for a router's buffer is the bandwidth times a round trip of 100 ms (RFC 3439)."""
LONGEST = 60.0
"""Seconds: more is a mistaken unit."""
SLOWEST, FASTEST = 1e3, 1e12
"""Bits a second."""
HOLD: Literal["hold"] = "hold"
CUT: Literal["cut"] = "cut"
"""What becomes of connections in an outage: they stay, or both ends get a reset when it begins."""


Time = Annotated[float, Field(ge=0, le=LONGEST), described_as(f"from 0 to {LONGEST:g} s")]
Rate = Annotated[float, Field(ge=SLOWEST, le=FASTEST), described_as("from 1kbit to 1000gbit (a second)")]
Loss = Annotated[
    float, Field(ge=0, lt=1), described_as("from 0 % to below 100 % (--outage is for a path on which nothing passes)")
]


@dataclass(frozen=True, config=STRICT)
class Path:
    """Times in seconds, one way; rates in bits a second, None: unlimited; ``loss`` a probability for each segment.

    ``jitter``: the delay is drawn evenly from ``delay - jitter`` to ``delay + jitter``. ``queue``: how long a segment
    waits at most for those before it on the access link. ``on_outage``: HOLD or CUT.
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
    preset: str = NONE

    def __post_init__(self) -> None:
        if self.jitter > self.delay:
            reason = f"jitter ({self.jitter:g} s) must not exceed the delay ({self.delay:g} s)"
            raise UserError(f"{reason}: nothing arrives before it was sent", key="jitter")

    @property
    def round_trip(self) -> float:
        """Seconds there and back, without waiting for others and with no jitter."""
        return 2 * self.delay

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Path:
        """Of texts with units. ``preset`` names others that hold where none is given. Raises UserError with the key."""
        own = {name: value for name, value in dict(values).items() if value is not None}
        if (preset := own.get("preset", NONE)) not in PRESETS:
            raise unknown("preset", preset, PRESETS, key="preset")
        given = {**PRESETS[preset], **own}
        read = {name: READERS[name](value, name) if name in READERS else value for name, value in given.items()}
        return validated(cls, read, "option of a path")

    def to_json(self) -> dict[str, Any]:
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "outage": str(self.outage)}


def _whole(value: Any, key: str) -> Any:
    """Of a text, as on the command line; anything else is checked with the other values."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


READERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("delay", "jitter", "queue"), units.seconds),
    **dict.fromkeys(("up", "down"), units.bits),
    "loss": units.share,
    "outage": parse,
    "seed": _whole,
}
