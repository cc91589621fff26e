"""What is simulated: how many edges ask, when, and how far away they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from ianvs_specdec.common.settings import STRICT, Text, called
from ianvs_specdec.load.options import TYPED, Named, Slo, kept_to
from ianvs_specdec.load.patterns import PATTERNS as OPEN_PATTERNS
from ianvs_specdec.load.patterns import POISSON

CLOSED = "closed"
PATTERNS = (*OPEN_PATTERNS, CLOSED)
PER_EDGE = 1 / 60
"""Requests a second of one edge, unless told otherwise: one a minute."""
AT_ONCE, QUEUE = 64, 256
"""Requests that share the steps, as in the engine, and that wait at the most, as with ``specdec serve``."""
MOST_EDGES, MOST_TOKENS = 1_000_000, 1 << 20

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS), TYPED]


def _shares(values: Mapping[str, float]) -> None:
    if not all(0 <= value <= 1 for value in values.values()):
        raise ValueError(f"must be from 0 to 1, not {', '.join(f'{value:g}' for value in values.values())}")


@dataclass(frozen=True, config=STRICT)
class UserPlan:
    """``edges`` ask for ``hours``, ``rate`` requests a second together; closed arrivals mean that each edge asks again
    only after its answer. ``network`` is the median of the edges' delays. Each field but ``coming``, the requests of a
    trace, is an option of ``specdec simulate``."""

    policy: Annotated[str, Field(description="a speculation length, as in YAML, or oracle")]
    edges: Annotated[int, Field(ge=1, le=MOST_EDGES, description="users"), TYPED] = 1000
    hours: Annotated[float, Field(gt=0, le=1e4, description="simulated time"), TYPED] = 1.0
    seed: Annotated[int, Field(description="the same seed gives the same file"), TYPED] = 0
    rate: Annotated[
        Annotated[float, Field(gt=0, le=1e9), TYPED] | None,
        Field(description="requests a second of all edges together (one a minute each, and of a trace its own)"),
    ] = None
    arrivals: Annotated[
        Text,
        Field(
            description="poisson, bursty, constant, a trace's file, or closed: each edge asks again after its answer"
        ),
    ] = POISSON
    network: Annotated[
        float, Field(ge=0, le=3600, description="median of the edges' network delays, one way, seconds"), TYPED
    ] = 0.0
    at_once: Annotated[int, Field(ge=1, le=1 << 16, description="requests that share the steps"), TYPED] = AT_ONCE
    queue: Annotated[int, Field(ge=0, le=MOST_EDGES, description="requests that may wait; more are refused"), TYPED] = (
        QUEUE
    )
    slo: Annotated[Slo, Field(description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")] = field(
        default_factory=dict, hash=False
    )
    traces: Annotated[
        Text | None,
        Field(description="journal.sqlite, or what specdec decode wrote, to draw acceptance and lengths from"),
    ] = None
    acceptance: Annotated[
        Named | None,
        kept_to(lambda value: _shares(value or {})),
        called("0.7 or chat=0.6,code=0.8"),
        Field(description="how often a drafted token is right, without traces: 0.7 (default) or chat=0.6,code=0.8"),
    ] = None
    prompt_tokens: Annotated[Tokens | None, Field(description="of each request (as recorded, else 256)")] = None
    max_tokens: Annotated[Tokens | None, Field(description="longest answer (as recorded, else 128)")] = None
    coming: Any = ()

    @property
    def seconds(self) -> float:
        return 3600 * self.hours

    @property
    def per_second(self) -> float:
        return self.edges * PER_EDGE if self.rate is None else self.rate
