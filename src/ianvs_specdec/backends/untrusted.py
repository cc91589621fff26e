"""Bounds of numbers from other processes. Servers' counts enter leaderboards and determine the length of lists."""

from __future__ import annotations

import math
import reprlib
from typing import Any, NoReturn

MAX_TOKENS = 1 << 20
"""Tokens of an answer without a limit."""
MAX_DRAFT_TOKENS = 1 << 16
"""Tokens drafted or verified in one step."""
MAX_TOKEN_ID = (1 << 31) - 1
MAX_LOGPROB = 0.01
"""Log-probabilities are at most 0; float16 rounds some up."""


class ImplausibleNumber(ValueError):
    """A number out of bounds."""

    KIND = "implausible number"
    """Name of this failure in traces."""


def bounded_int(value: Any, what: str, most: int) -> int:
    """Return ``value`` if it is a whole number from 0 to ``most``, such as 5, or 5.0 as some servers write it.

    Raises ImplausibleNumber.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        _refuse(value, f"{what} must be a whole number from 0 to {most}")
    return value


def bounded_float(value: Any, what: str, low: float, high: float) -> float:
    """Return ``value`` if it is a number from ``low`` to ``high``. Raises ImplausibleNumber."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        _refuse(value, f"{what} must be a number from {low:g} to {high:g}")
    return float(value)


def logprob(value: Any) -> float:
    """Log-probability of a sampled token. Raises ImplausibleNumber."""
    return bounded_float(value, "the log-probability of a token", -1e9, MAX_LOGPROB)


def top_logprob(value: Any) -> float:
    """Log-probability of a likely token, possibly minus infinity. Raises ImplausibleNumber."""
    return bounded_float(value, "the log-probability of a likely token", -math.inf, MAX_LOGPROB)


def bounded_list(value: Any, what: str, most: int) -> list[Any]:
    """Return a list of at most ``most`` entries, empty for None. Raises ImplausibleNumber, or TypeError for no list."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{what} must be a list, not {reprlib.repr(value)}")
    if len(value) > most:
        _refuse(len(value), f"{what} must be a list of at most {most}")
    return value


def reject_constant(text: str) -> NoReturn:
    """Argument ``parse_constant`` of ``json.loads``: NaN and Infinity are not JSON."""
    _refuse(text, "a number must be finite")


def _refuse(value: Any, rule: str) -> NoReturn:
    raise ImplausibleNumber(f"{rule}, not {reprlib.repr(value)}")
