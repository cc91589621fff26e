"""Numbers from another process: accepted where they are plausible, else rejected by name.

A server is not ours. What it counts goes into leaderboards, and lists are made as long as it says.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any, NoReturn

MOST_TOKENS = 1 << 20
"""Tokens of one answer where no limit was asked for: more than any model writes."""
MOST_DRAFTED = 1 << 16
"""Tokens that one step drafts or verifies: more than any tree has."""
LARGEST_ID = (1 << 31) - 1
LARGEST_LOGPROB = 0.01
"""A log-probability is 0 at most; in float16 it may seem to be a little more."""


class ImplausibleNumber(ValueError):
    """A number that cannot be true."""

    KIND = "implausible number"
    """What such a failure is called in a trace."""


def whole(value: Any, what: str, most: int) -> int:
    """A count from 0 to ``most``. Raises ImplausibleNumber: a text, a fraction and ``true`` are no counts. JSON has one
    kind of number, and some servers write 5.0.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        _refuse(value, f"{what} must be a whole number from 0 to {most}")
    return value


def real(value: Any, what: str, low: float, high: float) -> float:
    """A number from ``low`` to ``high``. Raises ImplausibleNumber."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        _refuse(value, f"{what} must be a number from {low:g} to {high:g}")
    return float(value)


def logprob(value: Any) -> float:
    """The log-probability of a token that was drawn. Raises ImplausibleNumber."""
    return real(value, "the log-probability of a token", -1e9, LARGEST_LOGPROB)


def alternative(value: Any) -> float:
    """The log-probability of a token that might have been drawn, or never could: minus infinity."""
    return real(value, "the log-probability of a likely token", -math.inf, LARGEST_LOGPROB)


def listed(value: Any, what: str, most: int) -> list[Any]:
    """A list of at most ``most`` entries, empty in place of None. Raises ImplausibleNumber, or TypeError for what is no
    list.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{what} must be a list, not {reprlib.repr(value)}")
    if len(value) > most:
        _refuse(len(value), f"{what} must be a list of at most {most}")
    return value


def no_number(text: str) -> NoReturn:
    """``json.loads`` calls it with NaN, Infinity and -Infinity, which are no JSON."""
    _refuse(text, "a number must have an end")


def _refuse(value: Any, rule: str) -> NoReturn:
    raise ImplausibleNumber(f"{rule}, not {reprlib.repr(value)}")
