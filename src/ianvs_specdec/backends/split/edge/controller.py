"""Draft length and mode (drafting on the edge, or streaming from the verifier) of an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ianvs_specdec.net.split.breakeven import round_seconds, round_tokens

HALF_LIFE = 256
"""Draft tokens after which acceptance statistics are halved."""
PRIOR_ACCEPTED, PRIOR_REJECTED = 3.0, 1.0
"""Prior of the acceptance: 0.75."""
SMOOTHING = 0.2
"""Weight of the latest measurement in a mean of times."""
MAX_LENGTH = 16
"""Draft tokens."""
MIN_SEND_PROBABILITY = 0.3
"""A draft is sent ahead if it is needed with this probability: an unneeded one costs bytes only."""
ANSWER_DECAY = 0.75
"""Weight of an answer relative to the next one in the rate of a mode."""
TRIAL_SHARE = 0.03
"""Share of the time for trials of the slower mode."""

Mode = Literal["auto", "split", "stream"]


@dataclass
class Mean:
    """Exponential moving average; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else (1 - SMOOTHING) * self.value + SMOOTHING * value


@dataclass
class Pace:
    """Tokens and seconds of recent answers in one mode, and the number of ``answers`` since in the other one."""

    tokens: float = 0.0
    seconds: float = 0.0
    answers: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = self.tokens * ANSWER_DECAY + tokens, self.seconds * ANSWER_DECAY + seconds

    @property
    def rate(self) -> float | None:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else None


class Controller:
    """Chooses draft length and mode for all answers of one edge, from what it measured.

    ``length`` fixes the draft length, else it maximizes tokens per second by ``net/split/breakeven.py``, from measured
    means. ``in_flight``: maximum drafts in flight; 0: no drafting ahead. Mode ``auto`` is the faster mode of recent
    answers, beginning with streaming; drafting is assumed to have full acceptance until tried.
    """

    def __init__(self, length: int | None = None, *, mode: Mode = "split", in_flight: int = 0) -> None:
        self._length, self._mode, self._in_flight = length, mode, in_flight
        self._accepted, self._rejected = PRIOR_ACCEPTED, PRIOR_REJECTED
        self._round_trip, self._draft = Mean(), Mean()
        self.service = Mean()
        """Seconds of the verifier's steps."""
        self.opening: float | None = None
        """Round trip of the last opening of a stream, in seconds."""
        self._paces = {True: Pace(), False: Pace()}
        """By whether the verifier streams."""

    @property
    def acceptance(self) -> float:
        return self._accepted / (self._accepted + self._rejected)

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of the round trip, of the verifier's step, and per draft token."""
        way = self._round_trip.value if self._round_trip.value is not None else self.opening
        return {"round_trip": way or 0.0, "service": self.service.value or 0.0, "draft": self._draft.value or 0.0}

    def choose_length(self, budget: int) -> int:
        """The length of the next draft, at most ``budget``."""
        if self._length is not None:
            return min(self._length, budget)
        return max(range(min(MAX_LENGTH, budget) + 1), key=self._rate)

    def _rate(self, length: int) -> float:
        """Predicted tokens per second of drafts of ``length``."""
        hit = self.acceptance ** (length + 1)
        sent = min(self._in_flight, 1) + sum(hit**ahead >= MIN_SEND_PROBABILITY for ahead in range(1, self._in_flight))
        seconds = round_seconds(length, self.acceptance, **self.measured, in_flight=sent)
        return round_tokens(length, self.acceptance) / max(seconds, 1e-9)

    def choose_mode(self) -> bool:
        """Whether the verifier streams the next answer, with its own drafts or none."""
        streams = self._mode == "stream" if self._mode != "auto" else self._faster_streams()
        self._paces[not streams].answers += 1
        self._paces[streams].answers = 0
        return streams

    def _faster_streams(self) -> bool:
        stream = self._paces[True].rate
        if stream is None:
            return True
        most = (MAX_LENGTH + 1) / max((self.opening or 0.0) + self.measured["service"], 1e-9)
        split = self._paces[False].rate or most
        streams = stream > split
        slower_by = max(stream, split) / max(min(stream, split), 1e-9) - 1
        return streams if self._paces[not streams].answers * TRIAL_SHARE < slower_by else not streams

    def record_answer(self, streams: bool, tokens: int, seconds: float) -> None:
        if tokens:
            self._paces[streams].add(tokens, seconds)

    def record_draft_time(self, tokens: int, seconds: float) -> None:
        if tokens:
            self._draft.add(seconds / tokens)

    def record_verdict(self, drafted: int, accepted: int) -> None:
        """``accepted`` of ``drafted`` levels of a draft were accepted."""
        self._accepted += accepted
        self._rejected += accepted < drafted
        if self._accepted + self._rejected > HALF_LIFE:
            self._accepted, self._rejected = self._accepted / 2, self._rejected / 2

    def record_round_trip(self, seconds: float) -> None:
        """Round trip of a draft that was alone in flight."""
        self._round_trip.add(max(0.0, seconds))
