"""Measure the cost of steps and drafts in the engine, as a ``CostTable``."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.contracts import Context, Drafter, Output, Target
from ianvs_specdec.engine.costs import CostTable, Grid
from ianvs_specdec.engine.length import FinishedStep, Load
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
BUDGETS = (0, 1, 3, 7)
"""1 + budget is a power of two, so that several numbers of requests have the same number of rows: this separates the
cost of a request from that of its rows."""
DRAFTS = (1, 2, 4, 8, 16)
"""Budgets of the drafter."""
MAX_ROWS = 512
"""Maximum rows of a verification step: 64 requests with drafts of 7."""
SHORT, LONG = 64, 512
"""Tokens of a prompt. Their difference shows the cost of context."""
MAX_READ = 8192
"""Maximum total tokens of long prompts, which are all read before a step is timed."""
TO_COME = 512
"""Maximum output tokens of a request."""
PATTERN = 16
"""Period of a prompt in tokens, so that copying drafters find matches."""
ENOUGH = 10
"""Samples per point; the median is used."""
PASSES = 2
"""Passes over all points, so that a busy minute does not affect one point alone."""
LONGEST_POINT = 3.0
"""Maximum seconds for all budgets of one number of requests in one pass."""
FIRST_PIECES = (8, 32, 128, 512, 2048)
"""Lengths of prompts that are read in one piece, up to the target's limit."""
LEAST_SHARE = 0.01
"""Minimum time of a step, relative to the fastest measured one."""
PAUSE = 8
"""Steps without a draft, after which the drafter has to catch up."""


@dataclass
class _Probe:
    """A length policy with a fixed budget, which stores the result of the last step."""

    budget: int = 0
    confidence: float = 0.0
    last: FinishedStep | None = None

    def budgets(self, load: Load) -> Sequence[int]:
        return [self.budget] * len(load.running)

    def learn(self, finished: FinishedStep) -> None:
        self.last = finished


class _Filler(Drafter):
    """Drafts as many arbitrary tokens as allowed. The target returns the same features as for ``drafter``."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def prepare(self, target: Target) -> Sequence[int]:
        return self._drafter.prepare(target)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        """No state."""

    def propose(self, context: Context, budget: int) -> TokenTree:
        return TokenTree.chain(context.tokens[-1], [0] * min(budget, context.remaining - 1))


Samples = dict[Any, list[float]]
"""Seconds by point."""


def _medians(samples: Samples) -> dict[Any, float]:
    return {point: median(found) for point, found in samples.items()}


def profile(
    target: Target, drafter: Drafter, seconds: float, *, requests: Iterable[int] = REQUESTS, memory: int | None = None
) -> CostTable:
    """Measure the costs of ``target`` and of the prepared ``drafter``, in at most about ``seconds``. ``memory``:
    maximum bytes of the sequences. Machine, model and method are not filled in."""
    measuring = _Measuring(target, drafter, memory, time.perf_counter() + seconds)
    counts = [count for count in requests if measuring.fits(count, SHORT)]
    for _ in range(PASSES):
        measuring.prompts()
        for count in counts:
            measuring.steps(count, SHORT)
            measuring.drafts(count)
        for count in counts:
            if count * measuring.long <= MAX_READ:
                measuring.steps(count, measuring.long)
        measuring.both()
    return measuring.table()


class _Measuring:
    def __init__(self, target: Target, drafter: Drafter, memory: int | None, until: float) -> None:
        self._target, self._drafter, self._memory, self._until = target, drafter, memory, until
        self.long = LONG if target.window is None else min(LONG, max(SHORT + 1, (target.window - TO_COME) // 2))
        self._probe = _Probe()
        self._random = random.Random(0)
        self._step: Samples = defaultdict(list)
        self._prompt: Samples = defaultdict(list)
        self._draft: Samples = defaultdict(list)
        self._drafted: Samples = defaultdict(list)
        self._mixed: Samples = defaultdict(list)
        self._catching_up: list[float] = []

    def fits(self, count: int, prompt: int) -> bool:
        of_one = self._target.memory(prompt + TO_COME) + self._drafter.memory(prompt + TO_COME)
        return self._memory is None or count * of_one <= self._memory

    def prompts(self) -> None:
        """Read prompts of several lengths, in one and several pieces."""
        most = self._target.prompt_rows
        rows = sorted({size for size in FIRST_PIECES if size < (most or self.long)} | {most or self.long})
        for size in (*rows, *([] if most is None else [2 * most])):
            if self._target.window is not None and size + TO_COME > self._target.window:
                continue
            for _ in range(ENOUGH // PASSES):
                engine = self._engine(1, size, self._drafter)
                while engine.busy:
                    spent = self._timed(engine)
                    finished = self._probe.last
                    if finished is None or finished.requests:
                        break
                    if finished.prompt_rows == (most or size) or size < (most or size):
                        self._prompt[finished.prompt_rows, size].append(spent)
                engine.close()
                if self._out_of_time():
                    return

    def steps(self, count: int, prompt: int) -> None:
        """Verify drafts of every size for ``count`` requests with prompts of ``prompt`` tokens."""
        if not self.fits(count, prompt) or self._out_of_time():
            return
        engine = self._ready(count, prompt, _Filler(self._drafter))
        budgets = [budget for budget in BUDGETS if count * (1 + budget) <= MAX_ROWS]
        for budget in self._cycles(engine, count, budgets):
            if self._probe.last is not None:
                self._step[count, budget, prompt].append(self._spent - self._probe.last.draft_seconds)
        engine.close()

    def drafts(self, count: int) -> None:
        if self._out_of_time():
            return
        engine = self._ready(count, SHORT, self._drafter)
        for budget in self._cycles(engine, count, DRAFTS):
            finished = self._probe.last
            assert finished is not None
            # Skip steps that also read a prompt, or catch up after a pause.
            if max(request.unread_tokens for request in finished.requests) <= DRAFTS[-1] + 1:
                self._draft[count, budget].append(finished.draft_seconds)
                self._drafted[budget].append(sum(request.step.drafted for request in finished.requests) / count)
        self._pause(engine, count)
        engine.close()

    def both(self) -> None:
        count, size = 4, self._target.prompt_rows or SHORT
        if not self.fits(count + 1, size) or self._out_of_time():
            return
        self._probe.budget = 0
        engine = self._ready(count, SHORT, _Filler(self._drafter))
        for _ in range(ENOUGH // PASSES):
            self._add(engine, size, self._drafter)
            spent = self._timed(engine)
            finished = self._probe.last
            if finished is not None and finished.prompt_rows == size and len(finished.requests) == count:
                self._mixed[count, size].append(spent)
                break
        engine.close()

    def _pause(self, engine: Engine, count: int) -> None:
        """Measure the cost per token that a drafter must read after a pause."""
        budget = DRAFTS[0]
        for _ in range(2):
            self._probe.budget = 0
            for _ in range(PAUSE):
                engine.step()
            self._probe.budget = budget
            engine.step()
            finished = self._probe.last
            if finished is None or len(finished.requests) != count or (count, budget) not in self._draft:
                return
            if behind := sum(request.unread_tokens for request in finished.requests):
                usual = median(self._draft[count, budget])
                self._catching_up.append(max(0.0, finished.draft_seconds - usual) / behind)

    def _cycles(self, engine: Engine, count: int, budgets: Sequence[int]) -> Iterable[int]:
        """Steps with each of the budgets in turn, while all requests are running. The first round is a warm-up."""
        began = time.perf_counter()
        for round_number in range(1 + ENOUGH // PASSES):
            for budget in self._random.sample(budgets, len(budgets)):
                self._probe.budget, self._probe.last = budget, None
                self._spent = self._timed(engine)
                finished = self._probe.last
                if (
                    finished is None
                    or len(finished.requests) != count
                    or any(request.over for request in finished.requests)
                ):
                    return
                if round_number:
                    yield budget
            if time.perf_counter() - began > LONGEST_POINT or self._out_of_time():
                return

    def _out_of_time(self) -> bool:
        return time.perf_counter() > self._until

    def _engine(self, count: int, prompt: int, drafter: Drafter) -> Engine:
        engine = Engine(self._target, self._probe, max_batch_size=count + 1)
        for _ in range(count):
            self._add(engine, prompt, drafter)
        return engine

    def _add(self, engine: Engine, prompt: int, drafter: Drafter) -> None:
        pattern = [self._random.randrange(self._target.vocabulary) for _ in range(PATTERN)]
        ids = (pattern * (prompt // PATTERN + 1))[:prompt]
        engine.add(Request(self._target, drafter.fork(), ids, Sampling(max_tokens=TO_COME), eos_ids=()))

    def _ready(self, count: int, prompt: int, drafter: Drafter) -> Engine:
        self._probe.budget, self._probe.last = 0, None
        engine = self._engine(count, prompt, drafter)
        while self._probe.last is None or len(self._probe.last.requests) < count:
            self._timed(engine)
        return engine

    def _timed(self, engine: Engine) -> float:
        began = time.perf_counter()
        over = engine.step()
        spent = time.perf_counter() - began
        for request in over:
            if request.error is not None:
                raise request.error
        return spent

    def table(self) -> CostTable:
        steps = _medians(self._step)
        if not steps:
            raise UserError("no step of the model ended within the time of the measurement: raise --seconds")
        step, request, attention = _fit(steps)
        prompt = self._prompt_grid()
        costs = CostTable(step, prompt, self._draft_grid(), request, attention, prompt_rows=self._target.prompt_rows)
        shared = 0.0
        for (count, size), mixed in _medians(self._mixed).items():
            apart = costs.step_seconds(count, count * SHORT, count, size, size)
            shared = _shared(apart, mixed, costs.step.at(1, 0))
        return replace(costs, shared=shared, catch_up=median(self._catching_up or [0.0]))

    def _prompt_grid(self) -> Grid:
        found = _medians(self._prompt)
        most = max(rows for rows, _ in found)
        rows = sorted({rows for rows, size in found if size <= most})
        short = [found[size, size] if (size, size) in found else found[size, most] for size in rows]
        long = max((size for _, size in found), default=most)
        if long <= most:
            return Grid(tuple(rows), (0,), tuple((value,) for value in short))
        # The pieces of a long prompt are measured together; the factor is assumed for shorter ones too.
        factor = max(1.0, found[most, long] / found[most, most])
        return Grid(tuple(rows), (most, long), tuple((value, value * factor) for value in short))

    def _draft_grid(self) -> Grid | None:
        found, drafted = _medians(self._draft), _medians(self._drafted)
        sizes: dict[int, int] = {}
        for budget in sorted(drafted):
            size = round(drafted[budget])
            if size > max(sizes.values(), default=0):
                sizes[budget] = size
        counts = [count for count in REQUESTS if all((count, budget) in found for budget in sizes)]
        if not sizes or not counts:
            return None
        rows = []
        for count in counts:
            seconds = [found[count, budget] for budget in sizes]
            # The cost of an empty draft is extrapolated.
            first, *more = sizes.values()
            slope = (seconds[1] - seconds[0]) / (more[0] - first) if more else 0.0
            rows.append((min(max(seconds[0] - slope * first, 0.0), seconds[0]), *seconds))
        return Grid(tuple(counts), (0, *sizes.values()), tuple(rows))


def _shared(apart: float, mixed: float, least: float) -> float:
    """Seconds that a mixed step saves over separate steps (``apart`` in total), limited to those of the smallest step,
    ``least``, since they were measured at different times."""
    return min(max(apart - mixed, 0.0), least)


def _fit(steps: dict[tuple[int, int, int], float]) -> tuple[Grid, float, float]:
    """The grid of steps by rows and context, and the costs of a request and of a row's token of context: non-negative
    least squares of the relative errors."""
    rows = sorted({count * (1 + budget) for count, budget, _ in steps})
    points = sorted(steps)
    # Unknowns: seconds for each number of rows, of a request, of a pair of row and token, of a token.
    design = np.zeros((len(points), len(rows) + 3))
    for place, (count, budget, prompt) in enumerate(points):
        design[place, rows.index(count * (1 + budget))] = 1.0
        design[place, len(rows) :] = count, count * (1 + budget) * prompt, count * prompt
    seconds = np.array([steps[point] for point in points])
    kept = list(range(design.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(design[:, kept] / seconds[:, None], np.ones(len(points)), rcond=None)
        if (found >= 0).all():
            break
        kept.remove(kept[int(found.argmin())])
    full = np.zeros(design.shape[1])
    full[kept] = found
    # Enforce that more rows never take less time.
    base = np.maximum(np.maximum.accumulate(full[: len(rows)]), LEAST_SHARE * seconds.min())
    request, attention, token = (float(value) for value in full[len(rows) :])
    most = max(count * prompt for count, _, prompt in points)
    table = tuple((float(value), float(value + token * most)) for value in base)
    return Grid(tuple(rows), (0, most), table), request, attention
