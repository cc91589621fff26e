"""Helpers of ``core`` and ``sedna``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

_ATOMS = frozenset({str, int, float, bool, type(None), bytes})


def copy_tree(value: Any) -> Any:
    """A deep copy, about ten times as fast as ``copy.deepcopy`` for dicts, lists and plain values (as in answers)."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: copy_tree(item) for key, item in value.items()}
    if kind is list:
        return [copy_tree(item) for item in value]
    return copy.deepcopy(value)


def accepted(function: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``names`` that the function accepts as keyword arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return names
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return names
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return tuple(name for name in names if name in known)
