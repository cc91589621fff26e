"""What a response in a test case's ``answers.jsonl`` must look like (see ``plugin.response``): readers count on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict

import msgspec

from ianvs_specdec.common.types import Count, Real, Seconds, Trace, Whole


class _Usage(TypedDict):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class _Baseline(TypedDict, total=False):
    key: str | None
    latency: Real | None
    issued: Real | None
    busy: Real | None
    completion_tokens: Count | None
    difference: Count | None
    identical: bool | None
    near_tie: bool | None


class _Turn(TypedDict, total=False):
    trace: Required[Trace]
    completion: Required[str]
    token_ids: list[Whole]
    usage: _Usage | None
    baseline: _Baseline | None
    finish_reason: str | None
    key: str | None
    hardware: str | None
    replayed: bool | None
    cached: bool | None
    truncated: Count | None


class _Routing(TypedDict, total=False):
    router: str | None
    score: Real | None
    seconds: Real | None


class _Slo(TypedDict, total=False):
    ttft: Real | None
    itl: Real | None
    latency: Real | None


class _Prefill(TypedDict, total=False):
    seconds: Required[Seconds]
    issued: Real | None
    replayed: bool | None
    hardware: str | None
    key: str | None


class _Sample(TypedDict, total=False):
    turns: list[_Turn]
    usage: _Usage
    completion: str | None
    error: str | None
    side: str | None
    model: str | None
    backend: str | None
    query_id: str | None
    group: str | None
    scorer: str | None
    replayed: bool | None
    cached: bool | None
    greedy: bool | None
    lossy: bool | None
    cost: Real | None
    options: Count
    round: Count | None
    failures: list[tuple[Real, str]]
    sandbox: list[str]


class _Response(_Sample, total=False):
    samples: list[_Sample]
    routing: _Routing | None
    slo: _Slo | None
    prefill: _Prefill | None


class _SideResponse(_Response, total=False):
    usage: Required[_Usage]  # type: ignore[misc]


def check_response(response: Mapping[str, Any], *, of_side: bool = False) -> None:
    """Raise ValueError that names the first field which is missing or not what it should be; a response ``of_side`` has
    its ``usage``. Fields that are not known are not looked at.
    """
    try:
        msgspec.convert(response, _SideResponse if of_side else _Response)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from error
