"""Validated options of a sweep, and its identity."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import HOTTEST, LARGEST_COUNT
from ianvs_specdec.common.settings import Settings, Text, called
from ianvs_specdec.lengths import create
from ianvs_specdec.load.patterns import PATTERNS, POISSON

SLO = ("ttft", "tpot", "latency")
AS_SERVED = "as-served"
"""Name of a running server's policy in the results."""
SERVED = ("settings", "backend", "set", "policies", "concurrency", "queue")
"""Keys for a server that is started here."""
REACHED = ("url", "model", "api_key_env")
"""Keys for a server that runs already."""
FILES = ("settings", "data")
MOST_REPEATS = 100
"""The arrivals of all of them are made at the start, and their requests are counted together."""
LONGEST = 7 * 86400.0
"""Seconds of one round: a larger number is in another unit."""


def _from_text(value: Any) -> Any:
    """Options of the command line are texts."""
    if not isinstance(value, str):
        return value
    for parse in (int, float, json.loads):
        with suppress(ValueError):
            return parse(value)
    return value


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _number(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(UserError(f"{name} must be a number, not {value!r:.60}"))
    return number


def _rates(value: Any) -> tuple[float, ...]:
    rates = tuple(_number(one, "rates") for one in (value.split(",") if isinstance(value, str) else _list(value)))
    for rate in rates:
        if rate <= 0:
            raise ValueError(UserError(f"a rate is more than 0 requests a second, not {rate:g}"))
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(f"must be different numbers, not {value!r:.60}")
    return tuple(sorted(rates))


def _policies(value: Any) -> tuple[str, ...]:
    policies = tuple(str(one).strip() for one in (_split(value) if isinstance(value, str) else _list(value)))
    if not all(policies) or len(set(policies)) < len(policies):
        raise ValueError(f"must be different speculation lengths, not {value!r:.60}")
    for policy in policies:
        try:
            create(policy)
        except UserError as error:
            raise ValueError(UserError(str(error))) from error
    return policies


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets: ``table:[[1,4,5],[5,64,0]]`` is one policy."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _slo(value: Any) -> Any:
    if isinstance(value, str):
        value = dict(item.partition("=")[::2] for item in value.split(","))
    if not isinstance(value, Mapping):
        return value
    found = {}
    for name, limit in value.items():
        if name not in SLO:
            raise ValueError(unknown("objective", name, SLO))
        found[name] = _number(limit, f"slo: {name}")
        if found[name] <= 0:
            raise ValueError(UserError(f"slo: {name} must be more than 0 seconds, not {limit}"))
    return found


TYPED = BeforeValidator(_from_text)
Duration = Annotated[float, TYPED, Field(gt=0, le=LONGEST), called("more than 0 seconds, at most 7 days")]
Whole = Annotated[int, TYPED, Field(ge=0, le=LARGEST_COUNT), called("a whole number from 0")]
Positive = Annotated[int, TYPED, Field(ge=1, le=LARGEST_COUNT), called("a whole number from 1")]


class SweepPlan(Settings):
    """Times are in seconds, ``rates`` in requests a second; ``slo`` has limits by names of ``SLO``. Either ``url`` is
    there, or ``settings``. Each setting is a key of the YAML file and an option of ``specdec load``.
    """

    noun: ClassVar[str] = "option"

    url: Text = Field("", description="URL of a running server with the OpenAI protocol")
    model: Text = Field("", description="the model's name on the server at --url")
    api_key_env: Text = Field("", description="environment variable with the key for the server at --url")
    settings: Text = Field("", description="YAML file with a model's hyperparameters, served here for each policy")
    backend: Text = Field("", description="the back end that drafts (as the file says)")
    set: dict[str, Any] = Field({}, description="hyperparameters of the model")
    policies: Annotated[tuple[str, ...], BeforeValidator(_policies)] = Field(
        (AS_SERVED,), description="speculation lengths to compare, such as fixed:0,fixed:4,goodput"
    )
    concurrency: Positive | None = Field(None, description="see specdec serve")
    queue: Whole | None = Field(None, description="see specdec serve")
    rates: Annotated[tuple[float, ...], BeforeValidator(_rates)] = Field(
        description="requests per second, such as 1,2,4"
    )
    duration: Duration = Field(30.0, description="seconds of arrivals in each round")
    repeats: Annotated[int, TYPED, Field(ge=1, le=MOST_REPEATS), called("a whole number from 1 to 100")] = Field(
        1, description="rounds of each policy at each rate, in turn, each repeat with new arrivals"
    )
    arrivals: Text = Field(POISSON, description=f"{', '.join(PATTERNS)}, or a trace (Azure CSV, Mooncake JSONL)")
    data: Text = Field(description="data file of Ianvs with the questions to ask")
    max_tokens: Positive = Field(128, description="maximum tokens of an answer")
    temperature: Annotated[float, TYPED, Field(ge=0, le=HOTTEST), called("0 (greedy) or more")] = Field(
        0.0, description="temperature of the answers"
    )
    seed: Whole = Field(0, description="seed of arrivals, questions, the policies' order and the intervals")
    warmup: Annotated[float, TYPED, Field(ge=0, le=LONGEST), called("0 or more seconds")] = Field(
        0.0, description="seconds at the start of each round that are excluded"
    )
    timeout: Duration = Field(300.0, description="seconds for one answer")
    slo: Annotated[dict[str, float], BeforeValidator(_slo)] = Field(
        {}, description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5"
    )

    @property
    def trace(self) -> Path | None:
        """The file of a trace, where arrivals come from one."""
        return None if self.arrivals in PATTERNS else Path(self.arrivals)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SweepPlan:
        """Checked options; lists may be texts with commas. Raises UserError with the key at fault."""
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
        found = {name: Path(path) for name in FILES if (path := getattr(self, name))}
        return found | ({"arrivals": self.trace} if self.trace else {})

    def to_json(self) -> dict[str, Any]:
        """Identity of a sweep: its options, with the contents of the files."""
        contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self._files().items()}
        return {**self.model_dump(mode="json"), "contents": contents}


def _check_server(given: Collection[str]) -> None:
    if ("url" in given) == ("settings" in given):
        raise UserError("give --url of a running server, or --settings of a model to serve")
    wrong = SERVED if "url" in given else REACHED
    other, own = ("--settings", "--url") if "url" in given else ("--url", "--settings")
    for name in wrong:
        if name in given:
            raise UserError(f"{name} goes with {other}, not with {own}", key=name)
    needed, why = (
        ("model", "the name that the server knows") if "url" in given else ("policies", "such as fixed:0,fixed:4")
    )
    if needed not in given:
        raise UserError(f"--{needed} is missing: {why}")
