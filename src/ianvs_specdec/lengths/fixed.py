"""Always the same number of draft tokens, or as many as the drafter's own settings say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.uniform import Uniform

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import Load


class Fixed(Uniform):
    def __init__(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"the number of draft tokens must be 0 or more, got {tokens}")
        self._tokens = tokens

    @classmethod
    def from_argument(cls, argument: str) -> Fixed:
        if not argument.strip().isdigit():
            raise ValueError("write fixed:N with the number of draft tokens, for example fixed:10")
        return cls(int(argument))

    def budget(self, load: Load) -> int:
        return self._tokens


class Full(Fixed):
    """No limit besides the drafter's own: what methods with a tree of a set size use."""

    def __init__(self) -> None:
        super().__init__(sys.maxsize)

    @classmethod
    def from_argument(cls, argument: str) -> Full:
        if argument:
            raise ValueError("full takes no argument")
        return cls()
