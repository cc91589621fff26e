"""How far an edge drafts before it asks, and whether it drafts at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
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
WORTH_KEEPING = 0.25
"""Which share of the way and the verifier's step a draft has to take for drafts behind several outcomes to be kept
ready: they save no more than a draft's time, and keep the edge's processor busy."""
SETTLED = 24
"""Tokens after a change of the mode until another one is considered: so many tell how fast the mode is."""
HORIZON = 256
"""Tokens in which a change has to pay for itself."""
LEAST_GAIN = 0.02
"""By which share the other mode has to be faster for each change before: between modes that are about equal there is
nothing to win, and each change costs."""
FORGOTTEN = 2048
"""Tokens after which what streaming brought, and how often the mode was changed before, is not known any more."""
MOVED = 1.5
"""By which factor the round trip has to change for what was learned of changes of the mode to be void."""
SUM_MEMORY = 64
"""Rounds or messages after which a sum of them counts half."""
DOUBT = 8.0
"""Rounds that are taken to have been seen before any were, none of them late: a few slow ones may be chance."""
MOST_LATE = 2.0
"""By which factor a round may take longer than the formula says, and than rounds do: what is measured beyond that is an
outage."""

Choice = Literal["split", "stream", "auto"]


@dataclass
class Mean:
    """An exponential mean; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else (1 - SMOOTHING) * self.value + SMOOTHING * value


@dataclass
class Ratio:
    """Of two sums whose older parts count less."""

    over: float = 0.0
    under: float = 0.0
    count: float = 0.0

    def add(self, over: float, under: float) -> None:
        self.over, self.under, self.count = self.over + over, self.under + under, self.count + 1
        if self.count > SUM_MEMORY:
            self.over, self.under, self.count = self.over / 2, self.under / 2, self.count / 2

    @property
    def value(self) -> float | None:
        return self.over / self.under if self.under else None


class Controller:
    """Chooses the length of drafts for the most tokens per second, by ``net/split/breakeven.py`` and what was measured
    so far: the round trip, the verifier's own time, the time to draft a token, and how many are accepted.
    Of the drafts that may be on their way (``in_flight``) only those count that are worth sending.

    What rounds took beyond the formula is added: messages take time on both sides, and no two steps the same. It is
    known for each of both kinds, those that begin anew and those that were drafted ahead. Of the former, how many found
    their draft kept ready is measured. The best of several estimates is more often too good than not, so the mode is
    chosen by what the edge's drafts were seen to bring, where that is less than the formula says.

    The mode ``auto`` compares the best of these rates with that of streaming. What streaming brings is measured, which
    is tried once where the verifier drafts (``beside``); where it does not, streaming brings a token for each of its
    steps. The mode is changed where ``HORIZON`` tokens take less time so, the change included: a round trip and a step,
    twice that for each change that there was since the round trip was another, and a share of ``LEAST_GAIN`` more.
    While the verifier drafts, the acceptance is taken to be what it may be at best, one standard error above what was
    seen, so that bad luck does not end the matter.

    ``length`` fixes it. ``in_flight`` 0: nothing is drafted ahead. One controller serves all answers of one edge.
    """

    def __init__(
        self, length: int | None = None, *, in_flight: int = 0, mode: Choice = "split", beside: bool = False
    ) -> None:
        self._length, self._in_flight, self._mode, self._beside = length, in_flight, mode, beside
        self._right, self._wrong = PRIOR_ACCEPTED, PRIOR_REJECTED
        self._way, self._service, self._draft = Mean(), Mean(), Mean()
        self._kept = Ratio()
        """Rounds whose outcome was kept ready, by all that were not as guessed."""
        self._late = {ahead: Ratio(under=DOUBT) for ahead in (False, True)}
        """Seconds beyond the formula, by rounds: of those drafted ahead and of the others."""
        self._rounds, self._split = Ratio(), Ratio()
        """Seconds of a round, and tokens a second since the edge drafts on this path, as they were seen."""
        self._share = 1.0
        """Of the rate that the formula says, how much was seen."""
        self._streamed = Ratio()
        self._since = self._age = 0
        """Tokens since the mode was changed, and since streaming was measured."""
        self._changes, self._way_then = 0, 0.0
        """Changes of the mode while the round trip was about ``way_then``."""
        self.streams = mode == "stream"
        """Whether the verifier is to draft."""

    @property
    def adapts(self) -> bool:
        """Whether the mode is its to choose."""
        return self._mode == "auto"

    @property
    def acceptance(self) -> float:
        return self._right / (self._right + self._wrong)

    def choose(self, budget: int) -> int:
        """The length of the next draft, at most ``budget``."""
        if self._length is not None:
            return min(self._length, budget)
        return max(range(min(LONGEST, budget) + 1), key=self.rate, default=0)

    def keeps_several(self, length: int) -> bool:
        """Whether drafts of ``length`` are worth having ready behind more than the likeliest outcome."""
        times = self.measured
        return length * times["draft"] > WORTH_KEEPING * (times["way"] + times["service"]) > 0

    def rate(self, length: int, acceptance: float | None = None) -> float:
        """Tokens per second of rounds with drafts of ``length``, by the formula."""
        accepted = self.acceptance if acceptance is None else acceptance
        under_way = self.under_way(length, accepted)
        kept = self._kept.value or 0.0
        seconds = round_seconds(length, accepted, **self.measured, in_flight=under_way, kept=kept)
        hit = accepted ** (length + 1) if under_way else 0.0
        late = [self._late[ahead].value or 0.0 for ahead in (False, True)]
        seconds += (1 - hit) * late[False] + hit * late[True]
        return round_tokens(length, accepted) / max(seconds, 1e-9)

    def stream_rate(self) -> float | None:
        """Tokens per second that streaming brings; None where that is not known."""
        if self._streamed.value is not None and self._age < FORGOTTEN:
            return self._streamed.value
        return None if self._beside or not self._service.value else 1.0 / self._service.value

    def decide(self, budget: int) -> bool:
        """Whether the verifier is to draft from now on."""
        if self._mode != "auto" or self._way.value is None or self._since < SETTLED:
            return self.streams
        moved = not self._way_then / MOVED < self._way.value < self._way_then * MOVED
        if moved or self._since >= FORGOTTEN:
            self._changes, self._way_then = 0, self._way.value
            self._split, self._share = Ratio(), 1.0
        stream, told = self.stream_rate(), self.split_rate(budget)
        if not self.streams and self._split.value is not None and self._split.count >= DOUBT:
            self._share = min(1.0, self._split.value / told)
        other, now = inf if stream is None else stream, told * self._share
        if self.streams:
            other, now = now, other
        change = (self._way.value + (self._service.value or 0.0)) * 2**self._changes
        gain = 1 + LEAST_GAIN * self._changes
        if gain * HORIZON / other + change < HORIZON / now:
            self.streams = not self.streams
            self._since, self._changes = 0, self._changes + 1
            self._split = Ratio()
            if self.streams and stream is None:
                self._streamed = Ratio()
        return self.streams

    def split_rate(self, budget: int) -> float:
        """Tokens per second that drafts of the edge bring."""
        accepted = self.acceptance
        if self.streams:
            seen = self._right + self._wrong
            accepted = min(accepted + sqrt(accepted * (1 - accepted) / seen), 1.0)
        lengths = range(min(LONGEST, budget) + 1) if self._length is None else [min(self._length, budget)]
        return max(self.rate(length, accepted) for length in lengths)

    def drafted(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long to draft."""
        if tokens:
            self._draft.add(seconds / tokens)

    def answered(
        self,
        drafted: int,
        accepted: int,
        service: float,
        way: float | None = None,
        elapsed: float | None = None,
        ahead: bool = False,
        kept: bool = False,
    ) -> None:
        """Of a draft of so many levels so many were accepted. The verifier says it took ``service`` seconds. Draft and
        verdict were ``way`` seconds on their way; None where the draft was sent before the verdict before it.
        ``elapsed`` seconds had passed since that verdict; None where something else came between. ``ahead``: the draft
        was made before that verdict came, for the likeliest one; ``kept``: for another one."""
        self._right += accepted
        self._wrong += accepted < drafted
        if self._right + self._wrong > MEMORY:
            self._right, self._wrong = self._right / 2, self._wrong / 2
        self._service.add(service)
        if way is not None:
            self._way.add(max(0.0, way))
        if not ahead:
            self._kept.add(kept, 1.0)
        if elapsed is not None and self._way.value is not None:
            told = self._told(drafted, ahead, kept)
            usual = max(told, self._rounds.value or 0.0)
            elapsed = min(elapsed, MOST_LATE * usual)
            self._late[ahead].add(elapsed - told, 1.0)
            self._rounds.add(elapsed, 1.0)
            self._split.add(accepted + 1, elapsed)
        self._since += accepted + 1
        self._age += accepted + 1

    def travelled(self, seconds: float) -> None:
        """So long took a message there and one back."""
        self._way.add(seconds)

    def streamed(self, tokens: int, seconds: float) -> None:
        """So many tokens came that the verifier drafted itself, so many seconds after those before them."""
        self._streamed.add(tokens, seconds)
        self._since += tokens
        self._age = 0

    def _told(self, length: int, ahead: bool, kept: bool) -> float:
        """Seconds of a round by the formula: of one that was drafted ahead, was kept ready, or began anew."""
        right = 1.0 if ahead else 0.0
        under_way = self.under_way(length, self.acceptance)
        return round_seconds(length, right, **self.measured, in_flight=under_way, kept=float(kept))

    @property
    def measured(self) -> dict[str, float]:
        """The round trip, the verifier's own time, and the time to draft a token, in seconds."""
        means = {"way": self._way, "service": self._service, "draft": self._draft}
        return {name: mean.value or 0.0 for name, mean in means.items()}

    def under_way(self, length: int, acceptance: float) -> int:
        """Drafts on their way at a time: those that are worth sending."""
        hit = acceptance ** (length + 1)
        if hit <= WORTH_SENDING:
            return min(self._in_flight, 1)
        return self._in_flight if hit >= 1 else min(self._in_flight, 1 + int(log(WORTH_SENDING) / log(hit)))
