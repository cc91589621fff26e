"""How far to speculate: one file per rule, named ``rule`` or ``rule:argument`` (``fixed:10``)."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import Length

LENGTHS = {
    "fixed": "ianvs_specdec.lengths.fixed:Fixed",
    "full": "ianvs_specdec.lengths.fixed:Full",
    "confidence": "ianvs_specdec.lengths.confidence:WhileConfident",
    "goodput": "ianvs_specdec.lengths.goodput:Goodput",
    "queue": "ianvs_specdec.lengths.queue:Queue",
    "table": "ianvs_specdec.lengths.table:Table",
    "ema": "ianvs_specdec.lengths.ema:Ema",
    "bandit": "ianvs_specdec.lengths.bandit:Bandit",
    "oracle": "ianvs_specdec.lengths.oracle:Oracle",
}


def create(spec: Any) -> Length:
    """The rule that ``spec`` names. A plain number N means ``fixed:N``, a list or a mapping, itself or as text, a
    ``table``. Raises ``UserError`` for anything it cannot read."""
    text = str(spec)
    name, _, argument = f"{_implied(text)}{text}".partition(":")
    if name not in LENGTHS:
        raise unknown("speculation length", name, LENGTHS, key="length")
    try:
        length: Length = pkgutil.resolve_name(LENGTHS[name]).from_argument(argument)
        return length
    except ValueError as error:
        raise UserError(f"length {text!r}: {error}", key="length") from error


def _implied(text: str) -> str:
    if text.isdigit():
        return "fixed:"
    return "table:" if text.startswith(("[", "{")) else ""
