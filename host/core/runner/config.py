"""Keys of the job file that do not change what is measured: ``concurrency``, ``repeats`` and ``runner``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any, ClassVar

from core.common.document import mismatch
from core.common.section import Section

_RUNNERS = ("local", "ray")
_RAY_MISSING = "runner ray needs the package ray, which is not installed: pip install 'ray>=2.60,<3'"
_LEAST = {"workers": 1, "cpus": 0, "gpus": 0, "shard": 1, "retries": 0}


@dataclass(frozen=True)
class RayConfig:
    """Options of runner ray. ``address``: HOST:PORT, ``auto``, or None to start a cluster on this machine; ``workers``:
    None = as many as fit, each with ``cpus``, ``gpus`` and ``resources``; ``shard``: queued rows per worker;
    ``retries`` of a row whose worker was lost."""

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    shard: int = 64
    retries: int = 3

    KINDS: ClassVar[dict[str, Any]] = {
        "name": _RUNNERS, "address": str, "workers": int, "cpus": float, "gpus": float, "resources": dict,
        "shard": int, "retries": int,
    }  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """``concurrency``: simultaneous rows per worker; ``repeats`` of each test case; ``ray``: None = runner local."""

    concurrency: int = 1
    repeats: int = 1
    ray: RayConfig | None = None

    KINDS: ClassVar[dict[str, Any]] = {"concurrency": int, "repeats": int, "runner": object}
    MOST: ClassVar[dict[str, int]] = {"concurrency": 1024, "repeats": 1000}

    @classmethod
    def parse(cls, at: Section, entries: dict[str, Any]) -> RunConfig:
        for name, most in cls.MOST.items():
            if not 1 <= entries.get(name, 1) <= most:
                at.add(f"{name} must be from 1 to {most}, not {entries[name]}", name)
        ray = _parse_runner(at.at("runner"), entries.get("runner", "local"))
        return cls(entries.get("concurrency", 1), entries.get("repeats", 1), ray)


def _parse_runner(at: Section, value: Any) -> RayConfig | None:
    if not isinstance(value, dict):
        if fault := mismatch(value, _RUNNERS):
            at.add(f"runner {fault}")
            return None
        value = {"name": value}
    # Null is the default of these keys.
    given = {key: item for key, item in value.items() if item is not None or key not in ("address", "workers")}
    entries = at.mapping(given, RayConfig.KINDS, required=("name",), closed=True)
    if entries.pop("name", None) == "ray":
        _check_ray(at, entries)
        return RayConfig(**entries)
    for key in entries:
        at.add(f"{key} is an option of runner ray, not of {value.get('name')}", key)
    return None


def _check_ray(at: Section, entries: dict[str, Any]) -> None:
    for key, least in _LEAST.items():
        if entries.get(key, least) < least:
            at.add(f"{key} must be {least} or more, not {entries[key]}", key)
    for name, amount in entries.get("resources", {}).items():
        if not isinstance(name, str) or mismatch(amount, float) or amount <= 0:
            at.add("resources must map the names of resources to numbers above 0", "resources")
    if "://" in entries.get("address", ""):
        at.add("address must be HOST:PORT of a Ray cluster, or auto, without ://", "address")
    if importlib.util.find_spec("ray") is None:
        at.add(_RAY_MISSING)
