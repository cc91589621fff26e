"""As far as the drafter trusts its own guesses (the dynamic draft length of assisted generation; Mamou et al. 2024)."""

from __future__ import annotations

from ianvs_specdec.lengths.fixed import Full


class WhileConfident(Full):
    """No limit on the number of draft tokens, but a drafter that knows probabilities stops below ``confidence``.

    The probability is that of the whole path from the root (see ``Context.confidence``). Drafters without
    probabilities draft as with ``full``.
    """

    def __init__(self, confidence: float) -> None:
        if not 0 < confidence < 1:
            raise ValueError(f"the confidence must lie between 0 and 1, got {confidence}")
        super().__init__()
        self.confidence = confidence

    @classmethod
    def from_argument(cls, argument: str) -> WhileConfident:
        try:
            return cls(float(argument))
        except ValueError as error:
            raise ValueError(
                "write confidence:P with a probability between 0 and 1, for example confidence:0.3"
            ) from error
