"""Options of ``specdec simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ianvs_specdec.common.settings import Settings, Text, called
from ianvs_specdec.load.arrivals import PATTERNS as OPEN_PATTERNS
from ianvs_specdec.load.arrivals import POISSON
from ianvs_specdec.load.plan import TYPED, Named, Slo, checked_by

CLOSED = "closed"
PATTERNS = (*OPEN_PATTERNS, CLOSED)
PER_EDGE = 1 / 60
"""Default requests per second of one edge: one per minute."""
AT_ONCE, QUEUE = 64, 256
"""Defaults: requests that share the steps, as in the engine; waiting requests, as in ``specdec serve``."""
MAX_EDGES, MAX_TOKENS = 1_000_000, 1 << 20

Users = Annotated[int, Field(ge=1, le=MAX_EDGES), TYPED]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS), TYPED]
Places = Annotated[int, Field(ge=0, le=MAX_EDGES), TYPED]
Hours = Annotated[float, Field(gt=0, le=1e4), TYPED]
Rate = Annotated[float, Field(gt=0, le=1e9), TYPED]
Delay = Annotated[float, Field(ge=0, le=3600), TYPED]


def _check_probabilities(values: Mapping[str, float] | None) -> None:
    if not all(0 <= value <= 1 for value in (values or {}).values()):
        raise ValueError(f"must be from 0 to 1, not {', '.join(f'{value:g}' for value in (values or {}).values())}")


class SimulationPlan(Settings):
    """The options, and ``coming``: the requests of a trace."""

    noun: ClassVar[str] = "option"

    policy: str = Field(description="a speculation length, as in YAML, or oracle")
    edges: Users = Field(1000, description="users")
    hours: Hours = Field(1.0, description="simulated time")
    seed: Annotated[int, TYPED] = Field(0, description="the same seed gives the same file")
    rate: Rate | None = Field(
        None, description="requests per second of all edges together (default: one per minute each, or the trace's)"
    )
    arrivals: Text = Field(
        POISSON, description=f"{', '.join(PATTERNS)} (each edge asks again after its answer), or a trace's file"
    )
    network: Delay = Field(0.0, description="median of the edges' network delays, one way, seconds")
    at_once: Tokens = Field(AT_ONCE, description="requests that share the steps")
    queue: Places = Field(QUEUE, description="requests that may wait; more are refused")
    slo: Slo = Field({}, description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")
    traces: Text | None = Field(
        None, description="journal.sqlite, or what specdec decode wrote, to draw acceptance and lengths from"
    )
    acceptance: Annotated[Named | None, checked_by(_check_probabilities), called("0.7 or chat=0.6,code=0.8")] = Field(
        None, description="how often a drafted token is right, without traces: 0.7 (default) or chat=0.6,code=0.8"
    )
    prompt_tokens: Tokens | None = Field(None, description="of each request (as recorded, else 256)")
    max_tokens: Tokens | None = Field(None, description="maximum tokens of an answer (as recorded, else 128)")
    coming: Any = ()

    @property
    def seconds(self) -> float:
        return 3600 * self.hours

    @property
    def per_second(self) -> float:
        return self.edges * PER_EDGE if self.rate is None else self.rate
