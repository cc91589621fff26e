"""The budgets with which all requests together get the most tokens per second.

That objective is the goodput of SmartSpec (Liu et al. 2024, arXiv 2406.14066, later TurboSpec): expected tokens of a
step over its time. SmartSpec measures a profile beforehand. Here both factors are learned from the run: times in
``step_costs``, acceptance in ``acceptance_model``.

**Plans.** A plan has a budget for each difficulty of a request. Candidates are pairs of a price and a cap: a request
drafts what maximizes its accepted tokens less the price of each drafted one, up to the cap. At price 0 all requests
draft the same; the higher the price, the more rows go to easy requests. If requests of difficulty ``d`` get ``t_d``
tokens per step, and a share ``q_d`` of all tokens, then a step of ``N`` requests has::

    N / sum(q_d / t_d)    tokens, and its requests are of difficulty d in proportion to q_d / t_d

since easy requests with long drafts finish soon and hard ones take their places. The plan for the next steps is the
candidate with the most tokens per second.

**Exploration.** Candidates that were never tried are uncertain. From time to time the candidate that would be the
fastest at the optimistic end of its confidence interval is tried (an upper confidence bound, as for bandits). And
requests that do not draft are probed with one token, as they may have become easier. Both take a small, fixed share of
the time, so that little is lost where drafts do not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.acceptance_model import MISS_RATES, AcceptanceModel, Floats
from ianvs_specdec.lengths.step_costs import StepCosts, Work

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import FinishedStep, Load, RequestStep

PRICES = np.array([0.0, 0.1, 0.25, 0.4, 0.6, 0.8])
"""Accepted tokens that a drafted one must bring: the cost of a row over the value of a token."""
WARM_UP, COLD = 6 * (0,) + 8 * (2,), frozenset({1, 2, 7, 8, 9, 10})
"""Budgets of the first steps: first none, to learn times, then drafts, to learn acceptance; and the numbers of those
steps whose times are ignored because a process is slow at first."""
PLAN_STEPS, PLAN_SECONDS = 8, 0.05
"""Lifetime of a plan, the longer of both: planning takes half a millisecond, one percent of it."""
TABLE_STEPS = 32
"""Lifetime of the table of expected results, which takes as long as a plan."""
TRIAL_STEPS, TRIAL_EVERY = 2, 32
"""Steps of a trial (a single one may be slow), and minimum distance of trials, or two plans if longer."""
EXPLORING = 0.008
"""Share of the time for trials, and the same for probes. A draft that adds half a step: about every 60 steps."""
DOUBT, APART = 1.5, 1.05
"""Standard deviations by which a trial may be faster than estimated (one in 15 is), and the minimum speed-up of a plan
that treats requests differently: the best of many seems better than it is."""
LEARNING, STEP_LESSON, SHARE_LESSON = 0.005, 80e-6, 4e-6
"""Share of the time for learning times, and the same for acceptance; seconds that learning a step and a draft takes."""


class Goodput:
    confidence = 0.0

    def __init__(self) -> None:
        self._acceptance, self._costs = AcceptanceModel(), StepCosts()
        self._now = self._until_plan = self._next_trial = self._next_table = self._planned = self._joined = 0
        self._budgets, self._pace = [0] * len(MISS_RATES), np.ones(len(MISS_RATES))
        """The plan by difficulty: budgets, and tokens per step of a request."""
        self._trial = self._probing = False
        self._for_trials = self._for_probes = self._for_lessons = self._probe_cost = 0.0
        """Seconds saved for trials, probes and learning, and the cost of probing all requests that do not draft."""
        self._prompt, self._output, self._piece = 0.0, 1.0, 0
        """Average tokens of prompts and outputs, and maximum prompt rows of a step that could not read all prompts."""

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        self._now += 1
        for stats in load.running:
            if stats.length_state is None:
                stats.length_state = state = self._acceptance.begin(stats.task, stats.context_tokens, self._now)
                state.budget = self._budgets[state.difficulty]
                self._joined += 1
        if self._now <= len(WARM_UP):
            return [min(WARM_UP[self._now - 1], stats.remaining - 1) for stats in load.running]
        if load.unread:
            self._piece = max(self._piece, load.prompt_rows)
        changes = max(self._joined, abs(len(load.running) - self._planned))
        if self._until_plan <= 0 or (4 * changes > self._planned and not self._trial):
            self._plan(load)
        self._until_plan -= 1
        self._probing = not self._trial and 0 < self._probe_cost <= self._for_probes
        if self._probing:
            self._for_probes -= self._probe_cost
        return [min(max(stats.length_state.budget, int(self._probing)), stats.remaining - 1) for stats in load.running]

    def _plan(self, load: Load) -> None:
        if self._now >= self._next_table:
            self._next_table = self._now + TABLE_STEPS
            self._tabulate()
        states = [stats.length_state for stats in load.running]
        difficulties = [state.difficulty for state in states]
        tokens, work = self._candidates(np.bincount(difficulties, minlength=len(MISS_RATES)) * self._pace, load)
        seconds = self._costs.seconds(work)
        rate = tokens / seconds
        best, same = int(rate.argmax()), int(rate[: len(self._acceptance.budgets)].argmax())
        best = best if rate[best] > APART * rate[same] else same
        self._planned, self._joined = len(states), 0
        self._pace = 1 / self._steps[:, best]
        hold = self._until_plan = int(max(PLAN_STEPS, PLAN_SECONDS / seconds[best]))
        if self._costs.changed:
            self._costs.changed, self._next_trial = False, 0
        tried = self._select_trial(tokens, seconds, work, best) if self._now >= self._next_trial else best
        self._trial = tried != best
        if self._trial:
            self._until_plan, self._next_trial = TRIAL_STEPS, self._now + max(TRIAL_EVERY, 2 * hold)
        self._budgets = self._choices[:, tried].tolist()
        for state, difficulty in zip(states, difficulties, strict=True):
            state.budget = self._budgets[difficulty]
        # The first two candidates are no drafts, and one token for all.
        idle = sum(state.budget == 0 for state in states) / len(states)
        self._probe_cost = idle * max(float(seconds[1] - seconds[0]), 1e-9)

    def _select_trial(self, tokens: Floats, seconds: Floats, work: Work, best: int) -> int:
        """The candidate to try, ``best`` if no trial is worth it."""
        lost = TRIAL_STEPS * np.maximum(seconds - tokens * seconds[best] / tokens[best], 0.0)
        # At most twice as fast.
        optimistic = np.maximum(seconds - DOUBT * self._costs.uncertainty(work, best), seconds / 2)
        rate = np.where(lost <= self._for_trials, tokens / optimistic, 0.0)
        tried = int(rate.argmax())
        if rate[tried] <= tokens[best] / seconds[best]:
            return best
        self._for_trials -= float(lost[tried])
        return tried

    def _tabulate(self) -> None:
        """For each difficulty and candidate: the budget, and steps, nodes and drafts per token."""
        model = self._acceptance
        model.tabulate()
        count = len(model.budgets)
        value = model.tokens[:, None] - PRICES[:, None] * model.nodes
        longer = value >= np.maximum.accumulate(value, axis=2)
        longer[:, 0] = True
        choice = np.maximum.accumulate(np.where(longer, np.arange(count), 0), axis=2).reshape(len(MISS_RATES), -1)
        self._choices, self._depth = model.budgets[choice], np.tile(model.depth, len(PRICES))
        self._steps = 1 / (1 + model.found * np.take_along_axis(model.tokens, choice, axis=1))
        self._nodes, self._drafts = self._steps * model.found * model.nodes[choice], self._steps * (choice > 0)

    def _candidates(self, mix: Floats, load: Load) -> tuple[Floats, Work]:
        """Tokens and work of each candidate's steps, for a ``mix`` of tokens by difficulty."""
        running = len(load.running)
        # If prompts remain, the reading requests will run as well.
        number = running + load.reading if load.unread else running
        steps = mix @ self._steps / number
        tokens, nodes, drafting = mix.sum() / steps, mix @ self._nodes / steps, mix @ self._drafts / steps
        # If prompts fill every step, finishing sooner only makes room for more prompts.
        prompts = np.maximum(tokens * self._prompt / self._output, 1.0)
        part = np.minimum(1.0, self._piece / prompts) if self._piece else np.ones(len(tokens))
        tokens, nodes, drafting, requests = part * tokens, part * nodes, part * drafting, part * number
        depth = self._depth * np.minimum(drafting * self._acceptance.found, 1.0)
        context, behind = requests * load.context_tokens / running, drafting * tokens / requests
        return tokens, Work(requests, requests + nodes, context, 0, drafting, nodes, depth, behind)

    def learn(self, finished: FinishedStep) -> None:
        seconds, requests = finished.seconds, finished.requests
        self._for_trials = min(self._for_trials + EXPLORING * seconds, 8 * seconds)
        self._for_probes = min(self._for_probes, self._probe_cost) + EXPLORING * seconds
        self._for_lessons = min(self._for_lessons + LEARNING * seconds, STEP_LESSON)
        if not requests:
            return
        stride = 1 if self._probing else max(round(len(requests) * SHARE_LESSON / (LEARNING * seconds)), 1)
        for request in requests[self._now % stride :: stride]:
            self._learn_acceptance(request)
        timed = self._now not in COLD if self._now <= len(WARM_UP) else self._trial or self._for_lessons > 0
        if timed:
            self._for_lessons -= STEP_LESSON
            self._costs.learn(finished)

    def _learn_acceptance(self, request: RequestStep) -> None:
        state = request.stats.length_state
        if request.over:
            # Tokens after the end say nothing about the draft.
            self._prompt += 0.02 * (state.start - self._prompt)
            self._output += 0.02 * (request.stats.context_tokens - state.start - self._output)
        elif request.budget:
            self._acceptance.learn(state, request, self._now)
            if not self._trial:
                state.budget = self._budgets[state.difficulty]
