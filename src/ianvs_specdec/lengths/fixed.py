"""Always the same number of draft tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ianvs_specdec.decoding.contracts import Stats


class Fixed:
    def __init__(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"the number of draft tokens must be 0 or more, got {tokens}")
        self._tokens = tokens

    @classmethod
    def from_argument(cls, argument: str) -> Fixed:
        if not argument.strip().isdigit():
            raise ValueError("write fixed:N with the number of draft tokens, for example fixed:10")
        return cls(int(argument))

    def budget(self, stats: Stats) -> int:
        return self._tokens
