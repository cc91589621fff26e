"""Plain values as JSON, so that two processes that do not trust each other can hand them over.

Nothing is executed when a value is read, and what is no plain value comes out as ``Opaque``, which equals nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

EXACT = 1 << 53
"""Whole numbers below this are the same in every reader of JSON; Python limits the digits of larger ones."""
_MANY: tuple[tuple[str, Any], ...] = (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset))


class Opaque:
    """A value of which only the type's name was handed over."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


def encoded(value: Any) -> Any:
    """The value as JSON. Subclasses of plain types become the plain ones; an iterator becomes what is left in it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if -EXACT < value < EXACT else ["int", hex(value)]
    if isinstance(value, float):
        return float(value)
    for name, kind in _MANY:
        if isinstance(value, kind):
            return [name, [encoded(item) for item in value]]
    if isinstance(value, Mapping):
        return ["dict", [[encoded(key), encoded(item)] for key, item in value.items()]]
    return _rare(value)


def _rare(value: Any) -> Any:
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", value.hex()]
    if isinstance(value, range):
        return ["range", *(hex(part) for part in (value.start, value.stop, value.step))]
    if _is("fractions", "Fraction", value):
        return ["Fraction", hex(value.numerator), hex(value.denominator)]
    if _is("decimal", "Decimal", value):
        return ["Decimal", str(value)]
    if isinstance(value, Iterator):
        return ["iterator", [encoded(item) for item in value]]
    return ["opaque", type(value).__name__]


def _is(module: str, name: str, value: Any) -> bool:
    """Whether it is of a type whose module takes long to import: whoever made it has done so."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name, ()))


def decoded(data: Any) -> Any:
    """What ``encoded`` was given. ValueError, TypeError, IndexError or RecursionError for anything else."""
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    kind, *parts = data
    for name, made in _MANY:
        if kind == name:
            return made(decoded(item) for item in parts[0])
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in parts[0]}
    if kind == "int":
        return int(parts[0], 16)
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return bytes.fromhex(parts[0])
    if kind == "range":
        return range(*(int(part, 16) for part in parts))
    if kind == "Fraction":
        from fractions import Fraction

        return Fraction(*(int(part, 16) for part in parts))
    if kind == "Decimal":
        from decimal import Decimal

        return Decimal(parts[0])
    if kind == "iterator":
        return iter([decoded(item) for item in parts[0]])
    if kind == "opaque":
        return Opaque(str(parts[0]))
    raise ValueError(f"no value is written {kind!r}")
