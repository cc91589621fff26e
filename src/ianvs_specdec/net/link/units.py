"""Texts with units, as people write them: ``25ms``, ``10mbit``, ``0.5%``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.common.errors import UserError

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
"""The names of Linux's ``tc``."""
UNLIMITED = "unlimited"
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-z%]*)\s*")


def seconds(value: Any, key: str) -> float:
    """Of ``25ms``. Raises UserError with the ``key``."""
    return _quantity(value, key, SECONDS, "25ms or 0.5s")


def bits(value: Any, key: str) -> float | None:
    """Bits a second of ``10mbit``; None of ``unlimited``. Raises UserError with the ``key``."""
    if value == UNLIMITED:
        return None
    text = value.removesuffix("/s") if isinstance(value, str) else value
    return _quantity(text, key, BITS, f"10mbit or {UNLIMITED}")


def share(value: Any, key: str) -> float:
    """0.005 of ``0.5%``. Raises UserError with the ``key``."""
    return _quantity(value, key, {"%": 0.01}, "0.5%")


def _quantity(value: Any, key: str, units: Mapping[str, float], example: str) -> float:
    """0 needs no unit. Any other number without one is refused as ambiguous."""
    given = _QUANTITY.fullmatch(str(value).lower())
    try:
        if given is None or isinstance(value, bool):
            raise ValueError
        number = float(given[1])
        factor = units.get(given[2]) if number or given[2] else 1.0
    except ValueError:
        factor = None
    if factor is None:
        raise UserError(f"{key} must be written as {example}, not {value!r:.60}", key=key)
    return number * factor
