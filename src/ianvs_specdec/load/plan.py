"""What is asked of a sweep: checked options, and what tells one sweep from another."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.sampling import HOTTEST, LARGEST_COUNT
from ianvs_specdec.lengths import create
from ianvs_specdec.load.patterns import PATTERNS, POISSON

SLO = ("ttft", "tpot", "latency")
AS_SERVED = "as-served"
"""What results call the policy of a server that runs already."""
SERVED = ("settings", "backend", "set", "policies", "concurrency", "queue")
"""Keys for a server that is started here."""
REACHED = ("url", "model", "api_key_env")
"""Keys for a server that runs already."""
FILES = ("settings", "data")
DURATION, MAX_TOKENS, TIMEOUT = 30.0, 128, 300.0
MOST_REPEATS = 100
"""The arrivals of all of them are made at the start, and their requests are counted together."""
LONGEST = 7 * 86400.0
"""Seconds of one round: whoever writes more has mistaken the unit."""


@dataclass(frozen=True)
class SweepPlan:
    """Times are in seconds, ``rates`` in requests a second; ``slo`` has limits by names of ``SLO``. Either ``url`` is
    there, or ``settings``. ``arrivals`` is one of ``PATTERNS`` or a trace's file. ``repeats``: the rounds that each
    policy has at each rate.
    """

    rates: tuple[float, ...]
    data: str
    duration: float = DURATION
    repeats: int = 1
    arrivals: str = POISSON
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    seed: int = 0
    warmup: float = 0.0
    timeout: float = TIMEOUT
    slo: Mapping[str, float] = field(default_factory=dict)
    url: str = ""
    model: str = ""
    api_key_env: str = ""
    settings: str = ""
    backend: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)
    policies: tuple[str, ...] = (AS_SERVED,)
    concurrency: int | None = None
    queue: int | None = None

    @property
    def trace(self) -> Path | None:
        """The file of a trace, where arrivals come from one."""
        return None if self.arrivals in PATTERNS else Path(self.arrivals)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SweepPlan:
        """Checked options. Raises UserError with the key at fault; lists may be texts with commas."""
        known = cls.__dataclass_fields__
        for name in values:
            if name not in known:
                raise unknown("option", name, known, key=str(name))
        given = {name: value for name, value in values.items() if value is not None}
        _check_server(given)
        if "rates" not in given:
            raise UserError("which rates? Give --rates 1,2,4: requests a second")
        if "data" not in given:
            raise UserError("which prompts? Give --data FILE: a data file of Ianvs with questions")
        readers: dict[str, Callable[[Any, str], Any]] = {
            "rates": _rates,
            "policies": _policies,
            "slo": _slo,
            "set": _mapping,
            "max_tokens": lambda value, key: _whole(value, key, 1),
            "seed": lambda value, key: _whole(value, key, 0),
            "repeats": lambda value, key: _whole(value, key, 1, MOST_REPEATS),
            "concurrency": lambda value, key: _whole(value, key, 1),
            "queue": lambda value, key: _whole(value, key, 0),
            "duration": lambda value, key: _seconds(value, key, more=True),
            "timeout": lambda value, key: _seconds(value, key, more=True),
            "warmup": lambda value, key: _seconds(value, key, more=False),
            "temperature": _temperature,
        }
        plan = cls(**{name: readers.get(name, _text)(value, name) for name, value in given.items()})
        if plan.warmup >= plan.duration:
            raise UserError(
                f"warmup ({plan.warmup:g} s) leaves nothing of the duration ({plan.duration:g} s)", key="warmup"
            )
        plan._check_files()
        return plan

    def _check_files(self) -> None:
        for name in (*FILES, "arrivals"):
            if (
                (path := getattr(self, name))
                and not (name == "arrivals" and path in PATTERNS)
                and not Path(path).is_file()
            ):
                patterns = f"; a pattern is one of {', '.join(PATTERNS)}" if name == "arrivals" else ""
                raise UserError(f"there is no file {path}{patterns}", key=name)

    def to_json(self) -> dict[str, Any]:
        """What two runs of one sweep have in common: the options, with what the files hold."""
        contents = {name: _digest(Path(path)) for name in FILES if (path := getattr(self, name))}
        if self.trace:
            contents["arrivals"] = _digest(self.trace)
        return {**asdict(self), "rates": list(self.rates), "policies": list(self.policies), "contents": contents}


def _check_server(given: Mapping[str, Any]) -> None:
    if ("url" in given) == ("settings" in given):
        raise UserError("which server? Give --url with one that runs, or --settings with a model to be served")
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
    check_no_secrets({"api_key_env": given.get("api_key_env")})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{key} must be a text, not {value!r:.60}", key=key)
    return value


def _number(value: Any, key: str, name: str = "") -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{name or key} must be a number, not {value!r:.60}", key=key)
    return number


def _whole(value: Any, key: str, least: int, most: int = LARGEST_COUNT) -> int:
    number = _number(value, key)
    if number != int(number) or not least <= number <= most:
        raise UserError(f"{key} must be a whole number from {least} to {most}, not {value!r:.60}", key=key)
    return int(number)


def _seconds(value: Any, key: str, *, more: bool) -> float:
    number = _number(value, key)
    if number < 0 or (more and number == 0) or number > LONGEST:
        raise UserError(f"{key} must be {'more than 0' if more else '0 or more'} seconds, not {value}", key=key)
    return number


def _temperature(value: Any, key: str) -> float:
    number = _number(value, key)
    if not 0 <= number <= HOTTEST:
        raise UserError(f"{key} must be 0 (greedy) or more, not {value}", key=key)
    return number


def _list(value: Any) -> list[Any]:
    return value.split(",") if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]


def _rates(value: Any, key: str) -> tuple[float, ...]:
    rates = tuple(_number(one, key) for one in _list(value))
    for rate in rates:
        if rate <= 0:
            raise UserError(f"a rate is more than 0 requests a second, not {rate:g}", key=key)
    if not rates or len(set(rates)) < len(rates):
        raise UserError(f"{key} must be different numbers, not {value!r:.60}", key=key)
    return tuple(sorted(rates))


def _policies(value: Any, key: str) -> tuple[str, ...]:
    policies = tuple(str(one).strip() for one in (_split(value) if isinstance(value, str) else _list(value)))
    if not all(policies) or len(set(policies)) < len(policies):
        raise UserError(f"{key} must be different speculation lengths, not {value!r:.60}", key=key)
    for policy in policies:
        try:
            create(policy)
        except UserError as error:
            raise UserError(str(error), key=key) from error
    return policies


def _split(text: str) -> list[str]:
    """At the commas that stand in no brackets: ``table:[[1,4,5],[5,64,0]]`` is one policy."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _slo(value: Any, key: str) -> dict[str, float]:
    if isinstance(value, str):
        value = dict(item.partition("=")[::2] for item in value.split(","))
    found = {}
    for name, limit in _mapping(value, key).items():
        if name not in SLO:
            raise unknown("objective", name, SLO, key=key)
        found[name] = _number(limit, key, f"{key}: {name}")
        if found[name] <= 0:
            raise UserError(f"{key}: {name} must be more than 0 seconds, not {limit}", key=key)
    return found


def _mapping(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a mapping, not {value!r:.60}", key=key)
    return dict(value)
