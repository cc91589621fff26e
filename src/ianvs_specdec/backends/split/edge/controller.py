"""How far an edge drafts before it asks, and whether it drafts at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ianvs_specdec.net.split.breakeven import round_seconds, round_tokens

MEMORY = 256
"""Drafted tokens after which what was learned of acceptance counts half: with fewer the length would follow luck."""
PRIOR_ACCEPTED, PRIOR_REJECTED = 3.0, 1.0
"""What is taken to have been seen before anything was: three of four drafted tokens are right."""
SMOOTHING = 0.2
"""The share of the latest measurement in a mean of times."""
LONGEST = 16
"""The longest draft that is considered: behind it hardly any token is reached."""
WORTH_SENDING = 0.3
"""With this probability of being reached, a draft is sent before the verdict on the one before it: it takes bytes, and
where it is not reached, nothing else."""
LAST_ANSWERS = 0.75
"""By which factor an answer counts less than the one after it in the rate of a mode."""
TRIALS = 0.03
"""Of the time may go to answers in the mode that was slower, to see whether it still is."""

Mode = Literal["split", "stream", "auto"]


@dataclass
class Mean:
    """An exponential mean; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else (1 - SMOOTHING) * self.value + SMOOTHING * value


@dataclass
class Pace:
    """Tokens a second of the last answers in one mode, and how many ``answers`` in the other one followed them."""

    tokens: float = 0.0
    seconds: float = 0.0
    answers: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = self.tokens * LAST_ANSWERS + tokens, self.seconds * LAST_ANSWERS + seconds

    @property
    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None


class Controller:
    """Serves all answers of one edge.

    The length of drafts is the one that brings the most tokens per second by ``net/split/breakeven.py``, from measured
    means. ``length`` fixes it. Of the drafts that may be on their way (``in_flight``; 0: nothing is drafted ahead)
    those count that are worth sending.

    The mode ``auto`` is that of more tokens per second in the last answers, and streaming in the first one. Until
    drafting was tried it is taken to bring whole drafts. The slower mode is tried again within ``TRIALS`` of the time.
    """

    def __init__(self, length: int | None = None, *, mode: Mode = "split", in_flight: int = 0) -> None:
        self._length, self._mode, self._in_flight = length, mode, in_flight
        self._right, self._wrong = PRIOR_ACCEPTED, PRIOR_REJECTED
        self._way, self._draft = Mean(), Mean()
        self.service = Mean()
        """Seconds of the verifier's steps."""
        self.opening: float | None = None
        """Seconds that the last opening took there and back."""
        self._paces = {True: Pace(), False: Pace()}
        """Of streaming and of drafting."""

    @property
    def acceptance(self) -> float:
        return self._right / (self._right + self._wrong)

    @property
    def measured(self) -> dict[str, float]:
        """The round trip, the verifier's own time, and the time to draft a token, in seconds."""
        way = self._way.value if self._way.value is not None else self.opening
        return {"way": way or 0.0, "service": self.service.value or 0.0, "draft": self._draft.value or 0.0}

    def choose_length(self, budget: int) -> int:
        """The length of the next draft, at most ``budget``."""
        if self._length is not None:
            return min(self._length, budget)
        return max(range(min(LONGEST, budget) + 1), key=self.rate)

    def rate(self, length: int) -> float:
        """Tokens per second of rounds with drafts of ``length``, by the formula."""
        in_flight = self._worth_sending(length)
        seconds = round_seconds(length, self.acceptance, **self.measured, in_flight=in_flight)
        return round_tokens(length, self.acceptance) / max(seconds, 1e-9)

    def _worth_sending(self, length: int) -> int:
        """How many drafts of ``length`` are on their way at a time."""
        hit = self.acceptance ** (length + 1)
        return min(self._in_flight, 1) + sum(hit**ahead >= WORTH_SENDING for ahead in range(1, self._in_flight))

    def choose_mode(self) -> bool:
        """Whether the verifier is to draft, or decode plainly, in the answer that begins now."""
        streams = self._mode == "stream" if self._mode != "auto" else self._chosen()
        self._paces[not streams].answers += 1
        self._paces[streams].answers = 0
        return streams

    def _chosen(self) -> bool:
        stream, split = self._paces[True].rate, self._split_rate()
        if stream is None:
            return True
        streams = stream > split
        slower_by = max(stream, split) / max(min(stream, split), 1e-9) - 1
        return streams if self._paces[not streams].answers * TRIALS < slower_by else not streams

    def _split_rate(self) -> float:
        """Tokens per second that drafting brings: as measured, else at most."""
        most = (LONGEST + 1) / max((self.opening or 0.0) + self.measured["service"], 1e-9)
        return self._paces[False].rate or most

    def record_answer(self, streams: bool, tokens: int, seconds: float) -> None:
        """``tokens`` came in one mode in ``seconds``."""
        if tokens:
            self._paces[streams].add(tokens, seconds)

    def record_draft_time(self, tokens: int, seconds: float) -> None:
        """Drafting ``tokens`` took ``seconds``."""
        if tokens:
            self._draft.add(seconds / tokens)

    def record_verdict(self, drafted: int, accepted: int) -> None:
        """Of a draft of ``drafted`` levels ``accepted`` were accepted."""
        self._right += accepted
        self._wrong += accepted < drafted
        if self._right + self._wrong > MEMORY:
            self._right, self._wrong = self._right / 2, self._wrong / 2

    def record_round_trip(self, way: float) -> None:
        """A draft and its verdict were ``way`` seconds on their way, with no other draft before them."""
        self._way.add(max(0.0, way))
