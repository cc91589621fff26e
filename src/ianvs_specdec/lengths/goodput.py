"""As many draft tokens as pay: the budgets with which all requests together get the most tokens per second.

That objective is the goodput of SmartSpec (Liu et al. 2024, arXiv 2406.14066, later TurboSpec): expected tokens of a
step over its time. There a profile is measured beforehand. Here both factors are learned from the run: times in
``step_costs``, acceptance in ``acceptance_model``.

**Plans.** A plan has a budget for each difficulty of a request. Its candidates are pairs of a price and a cap: a
request drafts what maximizes its accepted tokens less the price of each drafted one, up to the cap. At the price 0 all
draft the same. The higher it is, the more of a step's rows go to easy requests. If a share ``q_d`` of all tokens is for
requests of difficulty ``d``, which get ``t_d`` tokens from each step, then a step of ``N`` requests has::

    N / sum(q_d / t_d)    tokens, and its requests are of difficulty d in proportion to q_d / t_d

since easy requests with long drafts leave soon and hard ones take their places. The candidate with the most tokens per
second is the plan for the next steps.

**Exploration.** What was never tried is uncertain. So now and then the candidate is tried that would be the fastest if
the doubts about its time were in its favour (an upper confidence bound, as for bandits). And requests that do not draft
are all asked for one token, as they may have become easier. Each of the two is paid from one percent of the time: where
no draft pays, no more than that is lost.

**Overhead.** Budgets hold between two plans, and only a sample of the steps and drafts is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.acceptance_model import MISS_RATES, AcceptanceModel, Floats, RequestState
from ianvs_specdec.lengths.step_costs import StepCosts, Work

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Load, Share

PRICES = np.array([0.0, 0.1, 0.25, 0.4, 0.6, 0.8])
"""Accepted tokens that each drafted one must bring. The best price is what a row costs over what a token is worth."""
WARM_UP = 6 * (0,) + 8 * (2,)
"""Budgets of the first steps. What a step takes must be known first, then whether drafts are of any use."""
COLD = frozenset({1, 2, 7, 8, 9, 10})
"""Steps of these, the first ones and the first ones with drafts, in which a process is still slow."""
PLAN_STEPS, PLAN_SECONDS = 8, 0.05
"""How long a plan holds, the longer of both. Making one takes 0.2 to 0.4 ms: at most one percent of the time."""
TABLES = 4
"""Plans for which a table of what each budget brings holds, which takes as long as a plan."""
TRIAL_STEPS, TRIAL_EVERY = 2, 32
"""Steps of a trial, as a single one may be late; least steps between two, as what one teaches shows only later."""
EXPLORING = 0.01
"""Share of the time that trials may lose, and the same for requests that are asked again. With drafts that take a third
of a step, useless ones are then asked for every 33 steps, and a change is noticed in time."""
DOUBT = 1.5
"""Standard deviations by which a trial may be faster than thought: one candidate in 15 is."""
APART = 1.05
"""How many times as fast a plan that tells requests apart must be: the best of many seems better than it is."""
LEARNING, STEP_LESSON, SHARE_LESSON = 0.005, 60e-6, 4e-6
"""Share of the time for learning from times, and the same for acceptance; seconds to learn from a step and a draft."""
TOO_SHORT = 8
"""Tokens: with fewer to come, asking a request again is of no use to it."""


class Goodput:
    confidence = 0.0

    def __init__(self) -> None:
        self._acceptance = AcceptanceModel()
        self._costs: StepCosts | None = None
        self._now = self._until_plan = self._until_table = self._next_trial = 0
        self._planned = self._joined = 0
        self._budgets, self._pace = [0] * len(MISS_RATES), np.ones(len(MISS_RATES))
        """The plan by difficulty: budgets, and tokens that a step with these brings."""
        self._trial = self._asking = False
        self._for_trials = self._for_asking = self._for_lessons = 0.0
        """Seconds saved up."""
        self._price_of_asking = 0.0
        self._behind, self._prompt, self._output, self._piece = False, 0.0, 1.0, 0
        """Whether drafters catch up, the average tokens of prompts and outputs, the most prompt rows of a step."""

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        self._now += 1
        for stats in load.running:
            if stats.kept is None:
                stats.kept = state = self._acceptance.begin(stats.task, stats.context_tokens, self._now)
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
        self._asking = not self._trial and 0 < self._price_of_asking <= self._for_asking
        if self._asking:
            self._for_asking -= self._price_of_asking
        return [self._budget(stats.kept, stats.remaining) for stats in load.running]

    def _budget(self, state: RequestState, remaining: int) -> int:
        budget = max(state.budget, 1) if self._asking and remaining > TOO_SHORT else state.budget
        return min(budget, remaining - 1)

    def _plan(self, load: Load) -> None:
        assert self._costs is not None
        self._until_table -= 1
        if self._until_table < 0:
            self._until_table = TABLES
            self._tabulate()
        states = [stats.kept for stats in load.running]
        difficulties = [state.difficulty for state in states]
        mix = np.bincount(difficulties, self._pace[difficulties], len(MISS_RATES))
        tokens, work = self._candidates(mix, load)
        seconds = self._costs.seconds(work)
        rate = tokens / seconds
        best, same = int(rate.argmax()), int(rate[: len(self._acceptance.budgets)].argmax())
        best = best if rate[best] > APART * rate[same] else same
        self._planned, self._joined = len(states), 0
        self._pace = 1 / self._steps[:, best]
        self._until_plan = int(max(PLAN_STEPS, PLAN_SECONDS / seconds[best]))
        if self._costs.changed:
            self._costs.changed, self._next_trial = False, 0
        trial = self._trial_of(tokens, seconds, work, best) if self._now >= self._next_trial else best
        self._trial = trial != best
        if self._trial:
            self._until_plan, self._next_trial = TRIAL_STEPS, self._now + TRIAL_EVERY
        self._budgets = self._choices[:, trial].tolist()
        for state, difficulty in zip(states, difficulties, strict=True):
            state.budget = self._budgets[difficulty]
        self._price_of_asking = self._price(work, best, sum(state.budget == 0 for state in states))

    def _trial_of(self, tokens: Floats, seconds: Floats, work: Work, best: int) -> int:
        """The candidate to be tried, ``best`` where none is worth it."""
        assert self._costs is not None
        lost = TRIAL_STEPS * np.maximum(seconds - tokens * seconds[best] / tokens[best], 0.0)
        doubt = DOUBT * self._costs.doubt(work, best)
        hoped = np.where(lost <= self._for_trials, tokens / np.maximum(seconds - doubt, 0.5 * seconds), 0.0)
        trial = int(hoped.argmax())
        if hoped[trial] <= tokens[best] / seconds[best]:
            return best
        self._for_trials -= float(lost[trial])
        return trial

    def _price(self, work: Work, best: int, idle: int) -> float:
        """The seconds for which a step takes longer if ``idle`` requests draft a token each."""
        assert self._costs is not None
        if not idle:
            return 0.0
        now = Work(*(each[best] for each in work))
        rows, drafting, nodes = now.rows + idle, now.drafting + idle, now.nodes + idle
        more = now._replace(rows=rows, drafting=drafting, nodes=nodes, depth=max(now.depth, 1.0))
        without, asking = self._costs.seconds(Work(*map(np.array, zip(now, more, strict=True))))
        return max(float(asking - without), 1e-9)

    def _tabulate(self) -> None:
        """For each difficulty and candidate: the budget, and steps, nodes and drafts for each token."""
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
        """The tokens of each candidate's steps and what these do, where requests of each difficulty have such parts of
        all tokens."""
        running = len(load.running)
        # Where prompts are left over, those that read will run as well.
        number = running + load.reading if load.unread else running
        steps = mix @ self._steps / number
        tokens, nodes, drafting = mix.sum() / steps, mix @ self._nodes / steps, mix @ self._drafts / steps
        prompts = tokens * self._prompt / self._output
        behind = self._behind * drafting * (tokens + prompts) / number
        # Where prompts fill every step, who is done sooner only makes room for more of them.
        part = np.minimum(1.0, self._piece / np.maximum(prompts, 1.0)) if self._piece else np.ones(len(tokens))
        tokens, nodes, drafting, behind, requests = (
            part * each for each in (tokens, nodes, drafting, behind, float(number))
        )
        context = requests * load.context_tokens / running
        depth = self._depth * np.minimum(drafting * self._acceptance.found, 1.0)
        return tokens, Work(requests, requests + nodes, context, np.zeros(len(tokens)), drafting, nodes, depth, behind)

    def learn(self, finished: Finished) -> None:
        seconds, shares = finished.seconds, finished.shares
        self._for_trials = min(self._for_trials + EXPLORING * seconds, 8 * seconds)
        self._for_asking = min(self._for_asking, self._price_of_asking) + EXPLORING * seconds
        self._for_lessons = min(self._for_lessons + LEARNING * seconds, STEP_LESSON)
        if not shares:
            return
        stride = 1 if self._asking else max(round(len(shares) * SHARE_LESSON / (LEARNING * seconds)), 1)
        for share in shares[self._now % stride :: stride]:
            self._learn_acceptance(share)
        warming = self._now <= len(WARM_UP)
        if self._now not in COLD if warming else self._trial or self._for_lessons > 0:
            self._for_lessons -= STEP_LESSON
            self._costs = self._costs or StepCosts(finished)
            self._costs.learn(finished)

    def _learn_acceptance(self, share: Share) -> None:
        state = share.stats.kept
        if share.over:
            # What comes behind the end says nothing of the draft.
            self._prompt += 0.02 * (state.start - self._prompt)
            self._output += 0.02 * (share.stats.context_tokens - state.start - self._output)
        elif share.budget:
            self._behind = self._behind or share.behind > 0
            self._acceptance.learn(state, share, self._now)
            if not self._trial:
                state.budget = self._budgets[state.difficulty]
