"""How far to speculate: one file per rule, named ``rule`` or ``rule:argument`` (``fixed:10``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ianvs_specdec.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Length

LENGTHS = {
    "fixed": "ianvs_specdec.lengths.fixed:Fixed",
    "full": "ianvs_specdec.lengths.fixed:Full",
    "confidence": "ianvs_specdec.lengths.confidence:WhileConfident",
    "goodput": "ianvs_specdec.lengths.goodput:Goodput",
    "oracle": "ianvs_specdec.lengths.oracle:Oracle",
}


def create(spec: str) -> Length:
    """The rule that ``spec`` names. A plain number N means ``fixed:N``. Raises ``UserError`` for anything it cannot
    read."""
    name, _, argument = (f"fixed:{spec}" if str(spec).isdigit() else str(spec)).partition(":")
    if name not in LENGTHS:
        raise unknown("speculation length", name, LENGTHS, key="length")
    module, _, cls = LENGTHS[name].partition(":")
    try:
        return getattr(importlib.import_module(module), cls).from_argument(argument)
    except ValueError as error:
        raise UserError(f"length {spec!r}: {error}", key="length") from error
