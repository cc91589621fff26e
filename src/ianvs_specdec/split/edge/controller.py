"""How far an edge drafts before it asks, and whether it drafts at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MEMORY = 64
"""Drafted tokens after which what was learned of acceptance counts half."""
PRIOR_ACCEPTED, PRIOR_REJECTED = 3.0, 1.0
"""What is taken to have been seen before anything was: three of four drafted tokens are right."""
SMOOTHING = 0.2
"""The share of the latest measurement in a mean of times."""
LONGEST = 16
"""The longest draft that is considered: behind it hardly any token is reached."""
BETTER = 1.1
"""By which factor the other mode has to promise more tokens per second, so that noise does not have it changed."""
TRIED_AGAIN = 256
"""Tokens after which a mode that was measured to be worse may be so no more, and only what it promises counts."""
PROMISED = 2.0
"""Tokens of one step of a verifier that drafts, before any were counted."""

Choice = Literal["split", "stream", "auto"]


@dataclass
class Mean:
    """An exponential mean; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else (1 - SMOOTHING) * self.value + SMOOTHING * value


@dataclass
class Streamed:
    """What streaming brought when it was last tried: tokens of a message, and the seconds since the one before."""

    tokens: Mean = field(default_factory=Mean)
    seconds: Mean = field(default_factory=Mean)
    age: int = TRIED_AGAIN
    """Tokens put out otherwise since."""


class Controller:
    """Chooses the length k of drafts for the most tokens per second, from what was measured so far.

    A draft of k tokens, each right with probability a where those before it are, brings (1 - a^(k+1)) / (1 - a)
    tokens. Its round takes W = R + S, the round trip and the verifier's own time, and k d seconds are spent on drafting
    before it, d for each token. But where the round before ended as was guessed, with probability h = a^(k+1), the
    k + 1 tokens were drafted during it: then a verdict comes as often as k + 1 tokens are drafted, and not more often
    than every F seconds. F is W, or where drafts are sent before the verdicts on those before them (``sent_ahead``),
    the seconds that were measured from such a verdict to the next, and S before there were any::

        T(k) = (1 - h) (W + k d) + h max(F, (k + 1) d)

    The mode ``auto`` compares the best of these rates with that of streaming: the tokens of a verifier's own step over
    its seconds, measured where it was tried, and before that one token for each of its steps, or ``PROMISED`` where it
    drafts (``beside``). ``length`` fixes k. One controller serves all answers of one edge.
    """

    def __init__(
        self, length: int | None = None, *, sent_ahead: bool = False, mode: Choice = "split", beside: bool = False
    ) -> None:
        self._length, self._sent_ahead, self._mode, self._beside = length, sent_ahead, mode, beside
        self._right, self._wrong = PRIOR_ACCEPTED, PRIOR_REJECTED
        self._way, self._service, self._draft, self._beat = Mean(), Mean(), Mean(), Mean()
        self._streamed = Streamed()
        self.streams = mode == "stream"
        """Whether the verifier is to draft."""

    @property
    def acceptance(self) -> float:
        return self._right / (self._right + self._wrong)

    def choose(self, budget: int) -> int:
        """The length of the next draft, at most ``budget``."""
        if self._length is not None:
            return min(self._length, budget)
        return max(range(min(LONGEST, budget) + 1), key=self.rate, default=0)

    def rate(self, length: int) -> float:
        """Tokens per second of rounds with drafts of ``length``."""
        right, draft = self.acceptance, self._draft.value or 0.0
        hit = right ** (length + 1)
        service = self._service.value or 0.0
        waited = (self._way.value or 0.0) + service
        least = (self._beat.value or service) if self._sent_ahead else waited
        seconds = (1 - hit) * (waited + length * draft) + hit * max(least, (length + 1) * draft)
        return (1 - hit) / (1 - right) / max(seconds, 1e-9)

    def stream_rate(self) -> float | None:
        """Tokens per second that streaming brought or promises; None before the verifier told the time of a step."""
        streamed = self._streamed
        if streamed.tokens.value is not None and streamed.seconds.value and streamed.age < TRIED_AGAIN:
            return streamed.tokens.value / streamed.seconds.value
        if self._service.value is None:
            return None
        return (PROMISED if self._beside else 1.0) / max(self._service.value, 1e-9)

    def decide(self, budget: int) -> bool:
        """Whether the verifier is to draft from now on."""
        if self._mode == "auto" and (stream := self.stream_rate()) is not None and self._way.value is not None:
            split = self.rate(self.choose(budget))
            self.streams = split <= BETTER * stream if self.streams else stream > BETTER * split
        return self.streams

    def drafted(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long to draft."""
        if tokens:
            self._draft.add(seconds / tokens)

    def answered(self, drafted: int, accepted: int, seconds: float, service: float, ahead: bool = False) -> None:
        """Of a draft of so many levels so many were accepted. The verdict came ``seconds`` after it was sent, of which
        the verifier says it took ``service``; or, for one that was sent ``ahead``, after the verdict before."""
        self._right += accepted
        self._wrong += accepted < drafted
        if self._right + self._wrong > MEMORY:
            self._right, self._wrong = self._right / 2, self._wrong / 2
        self._service.add(service)
        if ahead:
            self._beat.add(seconds)
        else:
            self._way.add(max(0.0, seconds - service))
        self._streamed.age += accepted + 1

    def streamed(self, tokens: int, seconds: float) -> None:
        """So many tokens came that the verifier drafted itself, so many seconds after those before them."""
        self._streamed.tokens.add(tokens)
        self._streamed.seconds.add(seconds)
        self._streamed.age = 0
