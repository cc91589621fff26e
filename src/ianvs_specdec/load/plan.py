"""Options of ``specdec load`` and ``specdec simulate``, and the identity of a sweep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import MAX_COUNT, MAX_TEMPERATURE
from ianvs_specdec.common.settings import Settings, Text, described_as, validator
from ianvs_specdec.lengths import create
from ianvs_specdec.load.arrivals import PATTERNS, POISSON


class Objectives(Settings):
    """Service-level objectives of a request, in seconds."""

    noun: ClassVar[str] = "objective"

    ttft: Annotated[float, Field(gt=0)] | None = None
    tpot: Annotated[float, Field(gt=0)] | None = None
    latency: Annotated[float, Field(gt=0)] | None = None


def _typed(value: Any) -> Any:
    if isinstance(value, str):
        for parse in (int, float, json.loads):
            with suppress(ValueError):
                return parse(value)
    return value


def _named(value: Any) -> Any:
    """Parse ``a=1,b=2``; a single value has the name ""."""
    if not isinstance(value, str):
        return value
    parts = [item.rpartition("=") for item in value.split(",")]
    if len({name for name, _, _ in parts}) < len(parts):
        raise ValueError(f"must give each value once, not {value!r:.60}")
    return {name: _typed(number) for name, _, number in parts}


def split(value: Any) -> list[Any]:
    """Split at commas outside brackets: ``table:[[1,4,5],[5,64,0]]`` is one policy."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, (list, tuple)) else [value]
    parts, depth = [""], 0
    for character in value:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def different(values: Collection[Any]) -> None:
    if not all(values) or not 0 < len(values) == len(set(values)):
        raise ValueError(f"must be different from each other, and at least one, not {list(values)!r:.60}")


def checked_by(check: Callable[[Any], Any]) -> AfterValidator:
    """A validator from a function that raises UserError; the key of its error is dropped."""

    def checked(value: Any) -> None:
        try:
            check(value)
        except UserError as error:
            raise UserError(str(error)) from error

    return validator(checked)


TYPED = BeforeValidator(_typed)
Whole = Annotated[int, Field(ge=0, le=MAX_COUNT), TYPED, described_as("a whole number from 0")]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT), TYPED, described_as("a whole number from 1")]
Named = Annotated[dict[str, float], BeforeValidator(_named)]
Slo = Annotated[
    Named, checked_by(Objectives.parse), described_as("limits in seconds, such as ttft=0.5,tpot=0.05,latency=5")
]
Rates = Annotated[
    tuple[Annotated[float, Field(gt=0)], ...],
    BeforeValidator(lambda value: tuple(map(_typed, split(value)))),
    validator(different),
    AfterValidator(lambda rates: tuple(sorted(rates))),
    described_as("numbers above 0, such as 1,2,4"),
]

AS_SERVED = "as-served"
"""Name of a running server's policy in the results."""
STARTED_KEYS = ("settings", "backend", "set", "policies", "concurrency", "queue")
"""Keys for servers that are started here."""
RUNNING_KEYS = ("url", "model", "api_key_env")
"""Keys for a running server."""
MAX_REPEATS = 100
"""All arrivals are generated at the start."""
MAX_SECONDS = 7 * 86400.0
"""Duration of a round: more is a mistaken unit."""


Duration = Annotated[float, TYPED, Field(gt=0, le=MAX_SECONDS), described_as("more than 0 seconds, at most 7 days")]


def _check_policies(policies: tuple[str, ...]) -> None:
    different(policies)
    for policy in policies:
        create(policy)


Policies = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: tuple(map(str, split(value)))), checked_by(_check_policies)
]


class SweepPlan(Settings):
    """Options of ``specdec load``, also keys of its YAML file: either ``url`` or ``settings``. Times in seconds."""

    noun: ClassVar[str] = "option"

    url: Text = Field("", description="URL of a running server with the OpenAI protocol")
    model: Text = Field("", description="the model's name on the server at --url")
    api_key_env: Text = Field("", description="environment variable with the key for the server at --url")
    settings: Text = Field("", description="YAML file with a model's hyperparameters, served here for each policy")
    backend: Text = Field("", description="the back end that drafts (as the file says)")
    set: dict[str, Any] = Field({}, description="hyperparameters of the model")
    policies: Policies = Field(
        (AS_SERVED,), description="speculation lengths to compare, such as fixed:0,fixed:4,goodput"
    )
    concurrency: Positive | None = Field(None, description="see specdec serve")
    queue: Whole | None = Field(None, description="see specdec serve")
    rates: Rates = Field(description="requests per second, such as 1,2,4")
    duration: Duration = Field(30.0, description="seconds of arrivals in each round")
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS), TYPED] = Field(
        1, description="rounds of each policy at each rate, in turn, each repeat with new arrivals"
    )
    arrivals: Text = Field(POISSON, description=f"{', '.join(PATTERNS)}, or a trace (Azure CSV, Mooncake JSONL)")
    data: Text = Field(description="data file of Ianvs with the questions to ask")
    max_tokens: Positive = Field(128, description="maximum tokens of an answer")
    temperature: Annotated[float, TYPED, Field(ge=0, le=MAX_TEMPERATURE), described_as("0 (greedy) or more")] = Field(
        0.0, description="temperature of the answers"
    )
    seed: Whole = Field(0, description="seed of arrivals, questions, the policies' order and the intervals")
    warmup: Annotated[float, TYPED, Field(ge=0, le=MAX_SECONDS), described_as("0 or more seconds")] = Field(
        0.0, description="seconds at the start of each round that are excluded"
    )
    timeout: Duration = Field(300.0, description="seconds for one answer")
    slo: Slo = Field({}, description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")

    @property
    def trace(self) -> Path | None:
        """The file of the trace, None if ``arrivals`` is a pattern."""
        return None if self.arrivals in PATTERNS else Path(self.arrivals)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SweepPlan:
        """Validate options; lists may be strings with commas. Raises UserError with the key."""
        for name in values:
            if name not in cls.model_fields:
                raise unknown(cls.noun, name, cls.names(), key=str(name))
        _check_server({name for name, value in values.items() if value is not None})
        check_no_secrets({"api_key_env": values.get("api_key_env")})
        plan = super().parse(values)
        if plan.warmup >= plan.duration:
            reason = f"warmup ({plan.warmup:g} s) leaves nothing of the duration ({plan.duration:g} s)"
            raise UserError(reason, key="warmup")
        for name, path in plan._files().items():
            if not path.is_file():
                patterns = f"; a pattern is one of {', '.join(PATTERNS)}" if name == "arrivals" else ""
                raise UserError(f"there is no file {path}{patterns}", key=name)
        return plan

    def _files(self) -> dict[str, Path]:
        files = {"settings": self.settings, "data": self.data, "arrivals": self.trace}
        return {name: Path(path) for name, path in files.items() if path}

    def to_json(self) -> dict[str, Any]:
        """Identity of a sweep: its options and the digests of its files."""
        contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self._files().items()}
        return {**self.model_dump(mode="json"), "contents": contents}


def _check_server(given: Collection[str]) -> None:
    if ("url" in given) == ("settings" in given):
        raise UserError("give --url of a running server, or --settings of a model to serve")
    wrong = STARTED_KEYS if "url" in given else RUNNING_KEYS
    other, own = ("--settings", "--url") if "url" in given else ("--url", "--settings")
    for name in wrong:
        if name in given:
            raise UserError(f"{name} goes with {other}, not with {own}", key=name)
    needed, why = ("model", "its name on the server") if "url" in given else ("policies", "such as fixed:0,fixed:4")
    if needed not in given:
        raise UserError(f"--{needed} is missing: {why}")


CLOSED = "closed"
SIMULATED_PATTERNS = (*PATTERNS, CLOSED)
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
        POISSON,
        description=f"{', '.join(SIMULATED_PATTERNS)} (each edge asks again after its answer), or a trace's file",
    )
    network: Delay = Field(0.0, description="median of the edges' network delays, one way, seconds")
    at_once: Tokens = Field(AT_ONCE, description="requests that share the steps")
    queue: Places = Field(QUEUE, description="requests that may wait; more are refused")
    slo: Slo = Field({}, description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")
    traces: Text | None = Field(
        None, description="journal.sqlite, or what specdec decode wrote, to draw acceptance and lengths from"
    )
    acceptance: Annotated[Named | None, checked_by(_check_probabilities), described_as("0.7 or chat=0.6,code=0.8")] = (
        Field(
            None, description="how often a drafted token is right, without traces: 0.7 (default) or chat=0.6,code=0.8"
        )
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
