"""What steps cost, learned from the times of the run itself."""

from __future__ import annotations

import math

import numpy as np

from ianvs_specdec.lengths.beside import Beside
from ianvs_specdec.lengths.reading import Reading
from ianvs_specdec.lengths.sizes import (
    FEW,
    NEW,
    NOISE,
    OFTEN,
    OUTLIER,
    ROWS,
    Amount,
    Contents,
    Floats,
    Known,
    Size,
    class_of,
    terms_of,
)
from ianvs_specdec.lengths.smoothing import smoothed

WARM = 6
"""Steps until a machine is warm: the first ones take several times as long. When one of them is clearly faster than
those before, these were not yet what steps take."""
PACE = 0.04**2
"""By how much the speed of a machine changes from step to step."""
QUIET = 0.04**2
"""The variance of the log time of a step that a machine has at least: steps of a size are not all the same, and how
they differ is not known better on a machine that is quieter."""
SETTLED = 32
"""Steps for which what is known of all sizes holds while none of them told of much: to work it out anew takes half of
the time of a plan."""
COMMON = 500
"""Steps over which what sizes have in common is averaged: more than any change of speed takes to be learned."""
UNUSUAL = 0.17
"""In log seconds: twice in a row on the same side, it is no noise. Where there is more than ``NOISE``, so is this."""
SHORTEST = 1e-9
"""Seconds: what a clock that did not move is taken for."""


class StepCosts:
    """Seconds of a target's step by its rows, from noisy samples.

    The log of a time is a sum: how fast the machine is at the moment, and how much work a step of that size is. A
    machine that is shared changes its speed all the time, so the speed follows the latest steps, and the sizes what was
    always so: a Kalman filter, one term at a time. What speed has done to a size that was not seen is known, then.

    Sizes are put into classes. Between classes the time is interpolated, beyond them it grows as over the last
    doubling, and it never falls with size. What a step takes beside its rows, for the context that it reads, for each
    request and for prompts, is learned from steps of a class that differ in these: rows of drafts may be cheaper than
    requests.

    Steps that are passed by count for the age of what is known, and for nothing else: "the step before" is the latest
    one that was learned from.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """What the steps so far have taken tells nothing of those to come."""
        self._sizes: dict[int, Size] = {}
        self._speed, self._speed_variance = 0.0, 0.0
        self._moved = 0.0
        """By how much sizes have changed, in log seconds: others may have changed with them, unseen."""
        self._common = 0.0
        """What the latest steps of sizes that are well known changed of them, on average, in log seconds."""
        self._before = 0.0
        self._noise = NOISE
        """The variance of the log time of a step as it was measured: how far apart a step and the one before it are."""
        self._latest: Size | None = None
        self._same, self._elsewhere = 0, 0.0
        """How many steps before the latest were of its size; the surprise of the one before these."""
        self.changed = False
        """Whether times have changed; whoever heeds it sets it back."""
        self.disputed = False
        """Whether the latest two steps, both of a size that is seldom seen, contradict each other: one was late."""
        self._beside = Beside()
        self._reading = Reading()
        self._knots: tuple[Floats, Floats, Floats] | None = None
        self._context, self._requests = 0.0, (0.0, 0.0)
        """What there is beside the knots for each token of context and each request; of a request, then what may be
        hoped for."""
        self._stale, self._due = False, 0
        """Whether a step since the knots were worked out has told of much, and the step at which they are at the latest
        worked out anew."""
        self.samples = 0
        """Steps so far."""

    @property
    def warm(self) -> bool:
        """Whether a step takes what it will take from now on."""
        return self.samples >= WARM

    @property
    def speed(self) -> float:
        """Seconds of the unit in which sizes are kept: all of the machine's work takes longer with it."""
        return math.exp(self._speed)

    @property
    def for_reading(self) -> float:
        """Seconds that a step takes for reading prompts at all, beside those for their tokens."""
        return self._beside.reading * self.speed

    @property
    def _state(self) -> float:
        """What has changed since a size was seen may have changed it as well."""
        return self._speed + self._moved

    def age(self, rows: int) -> int:
        """Steps since one of that size was learned from."""
        known = [sizes[class_of(rows)].when for sizes in (self._sizes, self._reading.sizes) if class_of(rows) in sizes]
        return self.samples - max(known, default=0)

    def pass_by(self) -> None:
        """There was a step that is not learned from."""
        self.samples += 1
        self._speed_variance += PACE

    def add(self, rows: int, seconds: float, context: int, requests: int, prompt_rows: int = 0) -> None:
        """A step of so many ``rows`` (tokens) of so many ``requests``, whose sequences held ``context`` tokens, and of
        ``prompt_rows`` tokens of prompts took so many seconds."""
        settled = math.log(max(seconds, SHORTEST))
        self.samples += 1
        if prompt_rows and self.samples > WARM:
            self._read(Contents(rows, context, requests, prompt_rows), settled)
            return
        step = Contents(rows + prompt_rows, context, requests)
        if self.samples == 1:
            self._speed = settled
        self._speed_variance += PACE
        size, doubtful = self._size(step, settled)
        beside = self._beside.of(*size.away(step))
        expected = size.work_at(beside)
        surprise = settled - self._speed - expected
        if self.samples <= WARM and surprise < -OUTLIER:
            self._forget()
            self.add(rows, seconds, context, requests, prompt_rows)
            return
        self._comes(size)
        self._compare(surprise, size)
        surprise, _, moved = self._shared(surprise, size, NOISE)
        if doubtful:
            # It keeps nearly all of its doubt, so that it may be hoped for less.
            size.variance = NEW**2
        work = math.exp(expected)
        self._beside.learn(step, size, work, surprise * work + beside)
        size.seen(step, beside, self.samples, self._state)
        self._stale = self._stale or size.told(moved)

    def _read(self, step: Contents, settled: float) -> None:
        """A step read prompts as well. Where all steps do, only they tell how fast the machine is."""
        self._speed_variance += PACE
        work, doubtful = math.exp(settled - self._speed), False
        if class_of(step.rows) not in self._reading.sizes and self._beside.prompts.any():
            # As for any new size: see ``_size``.
            thought = self._thought(step) / self.speed + self._beside.of(0, 0, *terms_of(step.prompts))
            work, doubtful = min(work, math.exp(NEW) * thought), work > math.exp(OUTLIER) * thought
        self._beside.begin(step.prompts, work)
        size = self._reading.size(step, work)
        self._comes(size)
        away = size.away(step)
        beside, doubt = self._beside.of(*away), float(self._beside.doubt(np.array(away[2:])))
        expected = size.work_at(beside)
        whole = math.exp(expected)
        # The noise is a part of what it took, even where what is known leads to expect hardly anything.
        scale = max(whole, work)
        noise = (NOISE * scale**2 + doubt) / whole**2
        surprise = math.log(work) - expected
        self._compare(surprise, size)
        surprise, sped, moved = self._shared(surprise, size, noise)
        if doubtful:
            size.variance = NEW**2
        # By the machine's speed as it is now: else prompts would be thought to take what is due to that.
        more, known = whole * (surprise - sped), 0.0
        if alone := self._sizes.get(class_of(step.rows)):
            rest = math.exp(alone.work)
            known = NOISE / (NOISE + alone.variance_now(self.samples, self._state) * (rest / scale) ** 2)
            self._beside.learn(step, alone, scale, whole + more - rest, known)
        self._beside.learn(step, size, scale, beside + more, 1 - known)
        before, took = size.work, settled - self._speed
        size.seen(step, beside, self.samples, self._state)
        # While prices are guessed, this step says how far off they may be: the average is between those before and it.
        size.work = min(max(size.work, min(before, took - OUTLIER)), max(before, took + OUTLIER))
        self._stale = self._stale or size.told(moved)

    def _comes(self, size: Size) -> None:
        """The step is of that size."""
        if size is self._latest:
            self._same += 1
        else:
            self._same, self._elsewhere, self._latest = 0, self._before, size

    def _compare(self, surprise: float, size: Size) -> None:
        """How far the step is from the one before it tells of the noise."""
        if size.count >= FEW:
            apart = min(abs(surprise - self._before), OUTLIER)
            self._noise += (apart**2 / 2 - self._noise) / OFTEN

    def _shared(self, surprise: float, size: Size, noise: float) -> tuple[float, float, float]:
        """Share a surprise, whose own variance is the ``noise``, between the machine's speed and the size. Returns what
        of it counts, and by how much the speed and the size have moved.

        What all sizes have in common is the machine's: late steps may count for less than fast ones, so that without
        this the speed and the sizes that are seen would move apart for ever, and leave the others behind."""
        surprise, variance = self._believed(surprise, size)
        doubt = self._speed_variance + variance + noise
        sped, moved = surprise * self._speed_variance / doubt, surprise * variance / doubt
        if size.count == OFTEN:
            self._common += (moved - self._common) / COMMON
            sped, moved = sped + self._common, moved - self._common
        self._speed += sped
        size.work += moved
        # No single surprise counts for more than an outlier, so this one has lasted.
        if abs(surprise) > OUTLIER and size.count >= FEW:
            self._moved += moved
        self._speed_variance *= 1 - self._speed_variance / doubt
        size.variance = min(size.variance, variance * (1 - variance / doubt)) if variance else size.variance
        return surprise, sped, moved

    def _thought(self, step: Contents) -> float:
        """Seconds that a step is thought to take, but for its prompts."""
        return float(self.at(np.array([float(step.rows)]), step.context, step.requests, roughly=True)[0])

    def _size(self, step: Contents, settled: float) -> tuple[Size, bool]:
        """What is known of steps of that size, and whether it is doubtful: the first step of a new size may be late, as
        any other. It is hardly twice what those around it say."""
        index, expected = class_of(step.rows), settled
        if index in self._sizes:
            return self._sizes[index], False
        if self._sizes:
            expected = math.log(self._thought(step))
        self._sizes[index] = Size.first(step, min(settled, expected + NEW) - self._speed)
        return self._sizes[index], settled > expected + OUTLIER

    def at(
        self,
        rows: Floats,
        context: Amount,
        requests: Amount,
        hoped: bool = False,
        roughly: bool = False,
    ) -> Floats:
        """Seconds of steps of so many ``rows`` of so many ``requests`` with ``context`` tokens before them; 0 while
        nothing is known. What may be ``hoped`` for is less where little is known, or for long, or where nobody knows
        whether it is for rows or for requests. ``roughly``: by what was known when it was last worked out."""
        if not self._sizes:
            return np.zeros(rows.shape)
        if self._knots is None or (not roughly and (self._stale or self.samples >= self._due)):
            self._knots, self._stale, self._due = self._settle(), False, self.samples + SETTLED
        sizes, expected, least = self._knots
        half = np.interp(sizes[-1] / 2, sizes, expected)
        slope = (expected[-1] - half) / (sizes[-1] - max(sizes[-1] / 2, sizes[0])) if len(sizes) > 1 else 0.0
        beyond = np.maximum(rows - sizes[-1], 0.0)
        each, hoped_each = (one * requests for one in self._requests)
        result: Floats = np.interp(rows, sizes, expected) + slope * beyond + each
        if hoped:
            # At most what two steps take that do the same together, and less, since nobody has seen it.
            least_slope = min(slope, expected[-1] / sizes[-1]) * math.exp(-NEW)
            result = np.minimum(result, np.interp(rows, sizes, least) + least_slope * beyond + hoped_each)
        return (result + self._context * context) * self.speed

    def _believed(self, surprise: float, size: Size) -> tuple[float, float]:
        """What of a surprise counts, and how uncertain the size's work is by it: one that is alone for its size counts
        little, late or fast, a second one on the same side all. If the step of another size before them surprised as
        well, the speed has changed, else the size has. Late and fast steps are treated alike: if only one of them moved
        the speed, it would drift away from the sizes."""
        side, variance = math.copysign(1.0, surprise), size.variance_now(self.samples, self._state)
        sure, unusual = side * size.before, UNUSUAL * math.sqrt(max(self._noise / NOISE, 1.0))
        believed = side * min(abs(surprise), max(OUTLIER, sure))
        # Of a size that is seldom seen, two steps that contradict each other are no more than one.
        self.disputed = self._same == 1 and size.count < OFTEN and min(abs(surprise), -sure) > unusual
        if self.disputed:
            self._same = 0
        lasting = min(abs(surprise), sure) > unusual
        if lasting and size.count >= FEW:
            self.changed = True
        if size.count < FEW:
            variance = max(variance, OUTLIER**2)
        elif lasting and side * self._elsewhere > unusual:
            self._speed_variance = max(self._speed_variance, OUTLIER**2)
        elif lasting:
            variance = max(variance, OUTLIER**2)
        if self._same and size.count >= FEW and not (lasting and self._same == 1):
            # Only a step after one of another size tells what a size is, and one more, which confirms it.
            variance = 0.0
        self._before = size.before = surprise
        return believed, variance

    def _known(self) -> Known:
        """What is known by now, of steps of both kinds."""
        self._beside.settle()
        alone = Known.of(self._sizes.values(), self.samples, self._state)
        self._beside.limit(alone)
        self._context, self._requests = self._beside.context, (self._beside.requests, self._beside.hoped(alone))
        reading = Known.of(self._reading.sizes.values(), self.samples, self._state)
        return alone.joined(self._reading.without(reading, self._beside))

    def _settle(self) -> tuple[Floats, Floats, Floats]:
        """Sizes and their work, smoothed where little is known: each size is about on the line through those around it.
        And the least work that may be hoped for."""
        known = self._known()
        rows, whole, variances, shared = known.rows, known.work, known.variances, known.shared
        work = np.maximum(whole - self._beside.of(known.context, known.requests), ROWS * whole)
        # A step with prompts tells less of its rows.
        latest = known.place(self._latest) if self._latest and not self._latest.prompts[0] else None
        likely = np.exp(2 * np.sqrt(variances))
        least, most = work / likely, work * likely
        if len(rows) > 2:
            # What steps of the latest size take is known, whatever part of it is the machine's speed.
            now = np.arange(len(rows)) == latest
            apart = np.maximum(variances - (shared / whole) ** 2, NOISE / OFTEN)
            spreads = np.where(now, np.minimum(apart, NOISE / (self._same + 1)), apart) * whole**2
            # A quiet machine's sizes are known better; what was seen once or twice may have been late.
            spreads[known.counts >= FEW] *= min(max(self._noise, QUIET) / NOISE, 1.0)
            # Near sizes that take much longer, the line may go below nothing.
            smooth = smoothed(rows, whole, work, spreads, shared, known.counts >= OFTEN)
            work = np.clip(smooth, least, most)
        # What the latest size takes bounds the others: a change is seen there first. Fewer rows do not take more, and
        # as many small steps as have all the rows of a large one do not take less than it.
        if latest is not None:
            few, many, one = slice(latest), slice(latest, None), work[latest]
            split = one / np.ceil(rows[latest] / rows[few]), one * np.ceil(rows[many] / rows[latest])
            work[few] = np.clip(work[few], np.minimum(split[0], most[few]), one)
            work[many] = np.clip(work[many], one, np.maximum(split[1], least[many]))
        expected, hoped = self._requests
        hope = work * np.exp(-np.sqrt(variances))
        left = np.maximum(hope - (hoped - expected) * known.requests, ROWS * hope)
        return rows, _rising(work), _rising(left)


def _rising(values: Floats) -> Floats:
    """The values, changed so that none is below one before it."""
    result: Floats = (np.maximum.accumulate(values) + np.minimum.accumulate(values[::-1])[::-1]) / 2
    return result
