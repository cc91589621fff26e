"""What a kept answer must look like. A line of a file may hold anything, and whoever reads an answer counts on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeGuard

from ianvs_specdec.types import Step

LARGEST = 1 << 53
"""Beyond this, whole numbers cannot be told apart as floats, in which metrics add them up."""

Check = Callable[[Any], bool]


def check_answer(answer: Any) -> None:
    """Raise ValueError that names the first field of an answer's JSON which is not what it should be. Fields that are
    not known are not looked at.
    """
    if not isinstance(answer, Mapping):
        raise ValueError("an answer is an object")
    _check(answer, _ANSWER, required=_ANSWER.keys() - {"truncated", "cached_tokens"})
    _check(answer["trace"], _TRACE, required=())


def are_attempts(value: Any) -> TypeGuard[list[tuple[float, str]]]:
    """Whether this is a list of pairs of seconds and a text."""
    return _are_tuples(value, (_are_numbers, _are_texts))


def _check(record: Mapping[str, Any], checks: Mapping[str, Check], required: Iterable[str]) -> None:
    for name in required:
        if name not in record:
            raise ValueError(f"{name} is missing")
    for name, check in checks.items():
        if name in record and not check(record[name]):
            raise ValueError(f"{name} is not what it should be")


def _are_whole(values: Iterable[Any]) -> bool:
    return all(type(value) is int and -LARGEST < value < LARGEST for value in values)


def _are_counts(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 0 <= value < LARGEST for value in values)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(
        (type(value) is float and math.isfinite(value)) or (type(value) is int and -LARGEST < value < LARGEST)
        for value in values
    )


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_tuples(rows: Any, columns: tuple[Callable[[Iterable[Any]], bool], ...]) -> bool:
    """Whether this is a list of lists with these columns."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(columns) for row in rows):
        return False
    return all(check(values) for check, values in zip(columns, zip(*rows, strict=True), strict=False))


def _is_step(value: Any) -> bool:
    return isinstance(value, list) and _STEP[0] <= len(value) <= _STEP[1] and _are_counts(value)


def _one(check: Callable[[Iterable[Any]], bool]) -> Check:
    return lambda value: check((value,))


def _one_or_none(check: Callable[[Iterable[Any]], bool]) -> Check:
    return lambda value: value is None or check((value,))


def _list_of(check: Callable[[Iterable[Any]], bool]) -> Check:
    return lambda value: isinstance(value, list) and check(value)


def _tuples_of(*columns: Callable[[Iterable[Any]], bool]) -> Check:
    return lambda value: _are_tuples(value, columns)


_STEP = (sum(field.default is MISSING for field in fields(Step)), len(fields(Step)))
"""How many numbers a step has at least and at most."""

_ANSWER: Mapping[str, Check] = {
    "text": _one(_are_texts),
    "token_ids": _list_of(_are_whole),
    "prompt_tokens": _one(_are_counts),
    "completion_tokens": _one(_are_counts),
    "finish_reason": _one(_are_texts),
    "truncated": _one(_are_counts),
    "cached_tokens": _one(_are_counts),
    "trace": lambda value: isinstance(value, Mapping),
}
_TRACE: Mapping[str, Check] = {
    "chunks": _tuples_of(_are_numbers, _are_counts),
    "steps": _list_of(lambda steps: all(map(_is_step, steps))),
    "near_ties": _tuples_of(_are_whole, _are_numbers),
    "rejected": lambda value: isinstance(value, list) and all(map(_list_of(_are_whole), value)),
    "failures": are_attempts,
    "confidence": lambda value: value is None or _are_tuples(value, (_are_numbers,) * 3),
    "characters": lambda value: value is None or (isinstance(value, list) and _are_counts(value)),
    **dict.fromkeys(("bytes_up", "bytes_down", "memory"), _one_or_none(_are_counts)),
    **dict.fromkeys(("issued", "busy"), _one_or_none(_are_numbers)),
}
