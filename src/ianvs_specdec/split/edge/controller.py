"""How far an edge drafts before it asks, and whether it drafts at all."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 64
"""Drafted tokens after which what was learned of acceptance counts half."""
PRIOR_ACCEPTED, PRIOR_REJECTED = 3.0, 1.0
"""What is taken to have been seen before anything was: three of four drafted tokens are right."""
SMOOTHING = 0.2
"""The share of the latest measurement in a mean of times."""


@dataclass
class Mean:
    """An exponential mean; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else (1 - SMOOTHING) * self.value + SMOOTHING * value


class Controller:
    """Chooses the length k of drafts for the most tokens per second, from what was measured so far.

    A draft of k tokens, each right with probability a where those before it are, brings (1 - a^(k+1)) / (1 - a)
    tokens. Its round takes W = R + S, the round trip and the verifier's own time. Before it, k d seconds were spent
    on drafting, d for each token; but where the round before ended as was guessed, with probability a^(k+1), the k + 1
    tokens were drafted during that round, and only what did not fit into it is waited for::

        T(k) = W + (1 - a^(k+1)) k d + a^(k+1) max(0, (k + 1) d - W)

    ``length`` fixes k. One controller serves all answers of one edge.
    """

    def __init__(self, length: int | None = None, longest: int = 16, ahead: bool = True) -> None:
        self._length, self._longest, self._ahead = length, longest, ahead
        self._right, self._wrong = PRIOR_ACCEPTED, PRIOR_REJECTED
        self._way, self._service, self._draft = Mean(), Mean(), Mean()

    @property
    def acceptance(self) -> float:
        return self._right / (self._right + self._wrong)

    def choose(self, budget: int) -> int:
        """The length of the next draft, at most ``budget``."""
        if self._length is not None:
            return min(self._length, budget)
        lengths = range(min(self._longest, budget) + 1)
        return max(lengths, key=self.rate, default=0)

    def rate(self, length: int) -> float:
        """Tokens per second of rounds with drafts of ``length``."""
        right = self.acceptance
        reached = right ** (length + 1)
        waited = (self._way.value or 0.0) + (self._service.value or 0.0)
        draft = self._draft.value or 0.0
        tokens = (1 - reached) / (1 - right)
        hit = reached if self._ahead else 0.0
        seconds = waited + (1 - hit) * length * draft + hit * max(0.0, (length + 1) * draft - waited)
        return tokens / max(seconds, 1e-9)

    def drafted(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long to draft."""
        if tokens:
            self._draft.add(seconds / tokens)

    def answered(self, drafted: int, accepted: int, seconds: float, service: float) -> None:
        """Of a draft of so many levels so many were accepted; the verdict came ``seconds`` after it was sent, of which
        the verifier says it took ``service``."""
        self._right += accepted
        self._wrong += accepted < drafted
        if self._right + self._wrong > MEMORY:
            self._right, self._wrong = self._right / 2, self._wrong / 2
        self._service.add(service)
        self._way.add(max(0.0, seconds - service))
