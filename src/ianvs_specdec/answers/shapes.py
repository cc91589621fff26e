"""What a kept answer must look like. A line of a file may hold anything, and whoever reads an answer counts on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeGuard

from ianvs_specdec.types import SplitTrace, Step

LARGEST = 1 << 53
"""Beyond this, whole numbers cannot be told apart as floats, in which metrics add them up."""

Check = Callable[[Any], bool]
Column = Callable[[Collection[Any]], bool]


def check_answer(answer: Any) -> None:
    """Raise ValueError that names the first field of an answer's JSON which is not what it should be. Fields that are
    not known are not looked at.
    """
    if not isinstance(answer, Mapping):
        raise ValueError("an answer is an object")
    check_fields(answer, _ANSWER, required=_ANSWER.keys() - {"truncated", "cached_tokens"})
    check_trace(answer["trace"])


def check_trace(trace: Mapping[str, Any], required: Iterable[str] = ()) -> None:
    """The same for the trace of an answer."""
    check_fields(trace, _TRACE, required)


def are_attempts(value: Any) -> TypeGuard[list[tuple[float, str]]]:
    """Whether this is a list of pairs of seconds and a text."""
    return _are_tuples(value, (_are_numbers, are_texts))


def is_time(value: Any) -> TypeGuard[float]:
    """Whether this is a number of seconds that something can have taken."""
    return _are_numbers((value,)) and 0 <= value < LARGEST


def check_fields(record: Mapping[str, Any], checks: Mapping[str, Check], required: Iterable[str]) -> None:
    """Raise ValueError that names the first field that is missing or fails its check."""
    for name in required:
        if name not in record:
            raise ValueError(f"{name} is missing")
    for name, check in checks.items():
        if name in record and not check(record[name]):
            raise ValueError(f"{name} is not what it should be")


# Lists are as long as answers, so that each is looked through by functions of C.


def are_whole(values: Collection[Any]) -> bool:
    return set(map(type, values)) <= {int} and min(values, default=0) > -LARGEST and max(values, default=0) < LARGEST


def _are_counts(values: Collection[Any]) -> bool:
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) < LARGEST


def _are_numbers(values: Collection[Any]) -> bool:
    try:
        return set(map(type, values)) <= {int, float} and all(map(math.isfinite, values))
    except OverflowError:
        return False


def are_texts(values: Collection[Any]) -> bool:
    return set(map(type, values)) <= {str}


def _are_tuples(rows: Any, columns: tuple[Column, ...]) -> bool:
    """Whether this is a list of lists with these columns."""
    if not isinstance(rows, list) or not set(map(type, rows)) <= {list}:
        return False
    if not set(map(len, rows)) <= {len(columns)}:
        return False
    return all(check(values) for check, values in zip(columns, zip(*rows, strict=True), strict=False))


def _are_steps(rows: Any) -> bool:
    if not isinstance(rows, list) or not set(map(type, rows)) <= {list}:
        return False
    return set(map(len, rows)) <= _STEP_LENGTHS and _are_counts(list(itertools.chain.from_iterable(rows)))


def is_text(value: Any) -> bool:
    return type(value) is str


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < LARGEST


def is_count_or_none(value: Any) -> bool:
    return value is None or is_count(value)


def is_number_or_none(value: Any) -> bool:
    return value is None or _are_numbers((value,))


def list_of(check: Column) -> Check:
    return lambda value: isinstance(value, list) and check(value)


def _tuples_of(*columns: Column) -> Check:
    return lambda value: _are_tuples(value, columns)


def _is_split(value: Any) -> bool:
    """Whether this is a mapping with all that is always told, each a number from 0."""
    if not isinstance(value, Mapping) or not value.keys() >= _SPLIT:
        return False
    told = [value[field.name] for field in fields(SplitTrace) if field.name in value]
    return _are_numbers(told) and min(told) >= 0


_SPLIT = {field.name for field in fields(SplitTrace)} - {"prefill", "work"}
"""What is told of every answer that an edge drafted for."""
_STEP_LENGTHS = set(range(sum(field.default is MISSING for field in fields(Step)), len(fields(Step)) + 1))
"""How many numbers a step may have."""

_ANSWER: Mapping[str, Check] = {
    "text": is_text,
    "token_ids": list_of(are_whole),
    "prompt_tokens": is_count,
    "completion_tokens": is_count,
    "finish_reason": is_text,
    "truncated": is_count_or_none,
    "cached_tokens": is_count,
    "trace": lambda value: isinstance(value, Mapping),
}
_TRACE: Mapping[str, Check] = {
    "chunks": _tuples_of(_are_numbers, _are_counts),
    "steps": _are_steps,
    "near_ties": _tuples_of(are_whole, _are_numbers),
    "rejected": lambda value: isinstance(value, list) and all(map(list_of(are_whole), value)),
    "failures": are_attempts,
    "confidence": lambda value: value is None or _are_tuples(value, (_are_numbers,) * 3),
    "target": lambda value: value is None or is_text(value),
    "characters": lambda value: value is None or (isinstance(value, list) and _are_counts(value)),
    "split": lambda value: value is None or _is_split(value),
    "drafts": lambda value: value is None or _are_tuples([value], (_are_counts, _are_counts)),
    **dict.fromkeys(("bytes_up", "bytes_down", "memory"), is_count_or_none),
    **dict.fromkeys(("issued", "busy"), is_number_or_none),
}
