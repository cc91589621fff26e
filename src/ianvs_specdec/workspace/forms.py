"""What a response in a test case's ``answers.jsonl`` must look like (see ``plugin.response``): readers count on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ianvs_specdec.answers.shapes import (
    Check,
    are_attempts,
    are_texts,
    are_whole,
    check_fields,
    check_trace,
    is_count,
    is_count_or_none,
    is_number_or_none,
    is_text,
    is_time,
    list_of,
)


def check_response(response: Mapping[str, Any], required: Iterable[str] = ()) -> None:
    """Raise ValueError that names the first field which is missing or not what it should be. Fields that are not known
    are not looked at.
    """
    check_fields(response, _RESPONSE, required)
    if usage := response.get("usage"):
        check_fields(usage, _USAGE, required=_USAGE)
    for part in (response, *response.get("samples", ())):
        check_fields(part, _RESPONSE, required=())
        for turn in part.get("turns", ()):
            check_fields(turn, _TURN, required=("trace", "completion"))
            check_trace(turn["trace"], required=("chunks", "steps"))
            check_fields(turn.get("usage") or {}, _USAGE, required=())
            check_fields(turn.get("baseline") or {}, _BASELINE, required=())
    check_fields(response.get("routing") or {}, _ROUTING, required=())
    check_fields(response.get("slo") or {}, _SLO, required=())
    check_fields(prefill := response.get("prefill") or {}, _PREFILL, required=("seconds",) if prefill else ())


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_mapping_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_text_or_none(value: Any) -> bool:
    return value is None or is_text(value)


def _is_bool_or_none(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_mapping, value))


_USAGE: Mapping[str, Check] = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), is_count)
_ROUTING: Mapping[str, Check] = {
    "router": _is_text_or_none,
    **dict.fromkeys(("score", "seconds"), is_number_or_none),
}
_PREFILL: Mapping[str, Check] = {
    "seconds": is_time,
    "issued": is_number_or_none,
    "replayed": _is_bool_or_none,
    **dict.fromkeys(("hardware", "key"), _is_text_or_none),
}
_SLO: Mapping[str, Check] = dict.fromkeys(("ttft", "itl", "latency"), lambda value: is_number_or_none(value or 0))
_BASELINE: Mapping[str, Check] = {
    "key": _is_text_or_none,
    **dict.fromkeys(("latency", "issued", "busy"), is_number_or_none),
    **dict.fromkeys(("completion_tokens", "difference"), is_count_or_none),
    **dict.fromkeys(("identical", "near_tie"), _is_bool_or_none),
}
_TURN: Mapping[str, Check] = {
    "trace": _is_mapping,
    **dict.fromkeys(("usage", "baseline"), _is_mapping_or_none),
    "completion": is_text,
    **dict.fromkeys(("finish_reason", "key", "hardware"), _is_text_or_none),
    **dict.fromkeys(("replayed", "cached"), _is_bool_or_none),
    "token_ids": list_of(are_whole),
    "truncated": is_count_or_none,
}
_RESPONSE: Mapping[str, Check] = {
    **dict.fromkeys(("turns", "samples"), _are_mappings),
    **dict.fromkeys(("routing", "slo", "prefill"), _is_mapping_or_none),
    "usage": _is_mapping,
    **dict.fromkeys(
        ("completion", "error", "side", "model", "backend", "query_id", "group", "scorer"), _is_text_or_none
    ),
    **dict.fromkeys(("replayed", "cached", "greedy", "lossy"), _is_bool_or_none),
    "cost": is_number_or_none,
    "options": is_count,
    "round": is_count_or_none,
    "failures": are_attempts,
    "sandbox": list_of(are_texts),
}
