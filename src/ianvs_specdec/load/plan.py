"""Validated options of a sweep, and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import MAX_TEMPERATURE
from ianvs_specdec.common.settings import Settings, Text, described_as
from ianvs_specdec.lengths import create
from ianvs_specdec.load.options import TYPED, Positive, Rates, Slo, Whole, different, kept_to, split
from ianvs_specdec.load.patterns import PATTERNS, POISSON

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


Duration = Annotated[float, TYPED, Field(gt=0, le=LONGEST), described_as("more than 0 seconds, at most 7 days")]


def _check_policies(policies: tuple[str, ...]) -> None:
    different(policies)
    for policy in policies:
        create(policy)


Policies = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: tuple(map(str, split(value)))), kept_to(_check_policies)
]


class SweepPlan(Settings):
    """Times are in seconds, ``rates`` in requests a second. Either ``url`` is there, or ``settings``. Each setting is a
    key of the YAML file and an option of ``specdec load``.
    """

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
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS), TYPED] = Field(
        1, description="rounds of each policy at each rate, in turn, each repeat with new arrivals"
    )
    arrivals: Text = Field(POISSON, description=f"{', '.join(PATTERNS)}, or a trace (Azure CSV, Mooncake JSONL)")
    data: Text = Field(description="data file of Ianvs with the questions to ask")
    max_tokens: Positive = Field(128, description="maximum tokens of an answer")
    temperature: Annotated[float, TYPED, Field(ge=0, le=MAX_TEMPERATURE), described_as("0 (greedy) or more")] = Field(
        0.0, description="temperature of the answers"
    )
    seed: Whole = Field(0, description="seed of arrivals, questions, the policies' order and the intervals")
    warmup: Annotated[float, TYPED, Field(ge=0, le=LONGEST), described_as("0 or more seconds")] = Field(
        0.0, description="seconds at the start of each round that are excluded"
    )
    timeout: Duration = Field(300.0, description="seconds for one answer")
    slo: Slo = Field({}, description="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")

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
