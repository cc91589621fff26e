"""A constant number of draft tokens, or no limit besides the drafter's settings or confidence."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.uniform import Uniform, whole

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import Load


class Fixed(Uniform):
    def __init__(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"the number of draft tokens must be 0 or more, got {tokens}")
        self._tokens = tokens

    @classmethod
    def from_argument(cls, argument: str) -> Fixed:
        try:
            return cls(whole(argument))
        except ValueError as error:
            raise ValueError("write fixed:N with the number of draft tokens, for example fixed:10") from error

    def budget(self, load: Load) -> int:
        return self._tokens


class Full(Fixed):
    """No limit besides the drafter's own, for methods whose trees have a set size."""

    def __init__(self) -> None:
        super().__init__(sys.maxsize)

    @classmethod
    def from_argument(cls, argument: str) -> Full:
        if argument:
            raise ValueError("full takes no argument")
        return cls()


class WhileConfident(Full):
    """Drafts until the probability of the path falls below ``confidence``: the dynamic draft length of assisted
    generation (Mamou et al. 2024). Drafters without probabilities draft as with ``full``."""

    def __init__(self, confidence: float) -> None:
        if not 0 < confidence < 1:
            raise ValueError(f"the confidence must be between 0 and 1, got {confidence}")
        super().__init__()
        self.confidence = confidence

    @classmethod
    def from_argument(cls, argument: str) -> WhileConfident:
        try:
            return cls(float(argument))
        except ValueError as error:
            usage = "write confidence:P with a probability between 0 and 1, for example confidence:0.3"
            raise ValueError(usage) from error
