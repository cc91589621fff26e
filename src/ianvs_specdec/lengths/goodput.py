"""As many draft tokens as pay: the budgets with which all requests together get the most tokens per second.

That objective is the goodput of SmartSpec (Liu et al. 2024, arXiv 2406.14066; TurboSpec in its later version): expected
accepted tokens over the time of the step. There a profile is measured beforehand; here both factors are learned while
it runs: time in ``step_costs``, acceptance in ``acceptance_model``.

**Plans.** A plan gives each difficulty of a request its budget. Candidates are pairs of a price and a cap: a request
drafts as many tokens as maximize accepted tokens less the price of each drafted one, up to the cap. At the price 0 all
draft the same; the higher it is, the more of a step's rows go to requests that are easy. If requests of difficulty
``d`` ask for a share ``q_d`` of all tokens and get ``1 + g_d`` of them from each step, then ``N`` places serve::

    N / sum of q_d / (1 + g_d)   tokens per step

and a share of places in proportion to ``q_d / (1 + g_d)`` is of difficulty ``d``: easy requests with long drafts leave
soon, and hard ones take their places. The candidate with the most tokens per second is taken.

**Trials.** What was never tried is uncertain. From time to time the candidate is tried that would be the fastest if the
doubts about its time were in its favour (an upper confidence bound, as bandits have it). Requests that do not draft are
asked for one token now and then, as they may have become easier. Both are paid from small shares of the time, so that
where no draft pays, little is lost.

**Own time.** Between two plans budgets hold, and only a sample of what happens is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.acceptance_model import MISS_RATES, AcceptanceModel, Floats
from ianvs_specdec.lengths.step_costs import StepCosts, Work

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Load

PRICES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
"""Accepted tokens that a drafted one must bring."""
WARM_UP = 6 * (0,) + 8 * (2,)
"""Budgets of the first steps: what a step takes is to be known, and then whether drafts are of any use."""
COLD = frozenset({1, 2, 7, 8, 9, 10})
"""First steps and first drafts of a process take longer, and tell nothing."""
PLAN_STEPS, PLAN_SECONDS = 8, 0.05
"""A plan holds for so long, whichever is longer: making one takes about 0.3 ms, and is to take about half a percent."""
TABLES = 4
"""Plans for which the table of what each budget brings holds."""
TRIAL_STEPS, TRIAL_SHARE, PROBE_SHARE = 2, 0.01, 0.01
"""A single step would not be believed; the shares of the time that trials, and asking again, may cost."""
DOUBT, WORTH = 1.5, 1.03
"""Standard deviations by which a trial may hope to be faster, and how many times as fast it must hope to be."""
APART = 1.05
"""How many times as fast the best plan must be that tells requests apart: the best of many seems better than it is."""
LEARNING_SHARE, STEP_LESSON, SHARE_LESSON = 0.005, 60e-6, 4e-6
"""The share of the time for learning what steps take, and the same for what is accepted; the seconds that it takes to
learn from a step, and from a share."""
TOO_SHORT = 8
"""Tokens: with fewer to come, what asking a request again teaches is of no use to it."""


class Goodput:
    confidence = 0.0

    def __init__(self) -> None:
        self._acceptance = AcceptanceModel()
        self._costs: StepCosts | None = None
        self._now = self._until_plan = self._until_table = self._planned = self._joined = 0
        self._budgets, self._pace = [0] * len(MISS_RATES), np.ones(len(MISS_RATES))
        """By difficulty: the budget of the plan, and the tokens that a step with it brings."""
        self._trial = self._probing = False
        self._for_trials = self._for_probes = self._for_lessons = 0.0
        self._probe_price = self._token_seconds = 0.0
        self._catches_up, self._prompt, self._output, self._piece = False, 0.0, 0.0, 0

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        self._now += 1
        if load.unread:
            self._piece = max(self._piece, load.prompt_rows)
        for stats in load.running:
            if stats.kept is None:
                stats.kept = self._acceptance.begin(stats.task, stats.context_tokens, self._now)
                stats.kept.budget = self._budgets[stats.kept.difficulty]
                self._joined += 1
        if self._now <= len(WARM_UP):
            return [min(WARM_UP[self._now - 1], stats.remaining - 1) for stats in load.running]
        changes = max(self._joined, abs(len(load.running) - self._planned))
        if self._until_plan <= 0 or (4 * changes > self._planned and not self._trial):
            self._plan(load)
        self._until_plan -= 1
        self._probing = not self._trial and 0 < self._probe_price <= self._for_probes
        least = 0
        if self._probing:
            self._for_probes -= self._probe_price
            least = 1
        return [
            min(max(stats.kept.budget, least if stats.remaining > TOO_SHORT else 0), stats.remaining - 1)
            for stats in load.running
        ]

    def _plan(self, load: Load) -> None:
        assert self._costs is not None
        self._until_table -= 1
        if self._until_table < 0:
            self._until_table = TABLES
            self._tabulate()
        states = [stats.kept for stats in load.running]
        difficulties = [state.difficulty for state in states]
        number = len(states)
        tokens, work = self._candidates(np.bincount(difficulties, self._pace[difficulties], len(MISS_RATES)), load)
        seconds = self._costs.seconds(work)
        rate = tokens / seconds
        alike = len(self._acceptance.budgets)
        best, same = int(rate.argmax()), int(rate[:alike].argmax())
        if rate[best] < APART * rate[same]:
            best = same
        self._token_seconds = 1 / float(rate[best])
        self._until_plan = int(max(PLAN_STEPS, PLAN_SECONDS / seconds[best]))
        self._planned, self._joined, self._trial = number, 0, False
        self._pace = 1 / self._steps[:, best]
        doubt = self._costs.doubt(work, best)
        hoped = tokens / np.maximum(seconds - DOUBT * doubt, 0.5 * seconds)
        loss = TRIAL_STEPS * np.maximum(seconds - tokens * self._token_seconds, 0.0)
        hoped[(loss > self._for_trials) | (hoped < WORTH * rate[best])] = 0.0
        trial = int(hoped.argmax())
        if hoped[trial] and trial != best:
            self._for_trials -= float(loss[trial])
            self._trial, self._until_plan = True, TRIAL_STEPS
            best = trial
        self._budgets = self._options[:, best].tolist()
        for state, difficulty in zip(states, difficulties, strict=True):
            state.budget = self._budgets[difficulty]
        idle = sum(state.budget == 0 for state in states)
        self._probe_price = self._price_of_probe(work, best, idle) if idle else 0.0

    def _price_of_probe(self, work: Work, best: int, idle: int) -> float:
        now = Work(*(np.broadcast_to(each, work.rows.shape)[best] for each in work))
        more = now._replace(
            rows=now.rows + idle,
            drafting=now.drafting + idle,
            nodes=now.nodes + idle,
            depth=np.maximum(now.depth, 1.0),
        )
        return max(float(self._costs.seconds(more) - self._costs.seconds(now)), 1e-9)

    def _tabulate(self) -> None:
        """For each candidate and difficulty: the budget, and for each token the steps, nodes and drafts."""
        model = self._acceptance
        model.tabulate()
        count, found = len(model.budgets), model.found
        value = model.tokens[:, None] - PRICES[:, None] * model.nodes
        longer = value >= np.maximum.accumulate(value, axis=2)
        pick = np.maximum.accumulate(np.where(longer, np.arange(count), 0), axis=2)
        pick[:, 0] = np.arange(count)
        pick = pick.reshape(len(MISS_RATES), -1)
        self._options, self._depth = model.budgets[pick], np.tile(model.depth, len(PRICES))
        self._steps = 1 / (1 + found * np.take_along_axis(model.tokens, pick, axis=1))
        self._nodes, self._drafts = self._steps * found * model.nodes[pick], self._steps * (pick > 0)

    def _candidates(self, mix: Floats, load: Load) -> tuple[Floats, Work]:
        """The tokens of each candidate's steps, and what these do, where so much of each difficulty is asked."""
        number = len(load.running)
        steps, nodes, drafts = mix @ self._steps, mix @ self._nodes, mix @ self._drafts
        tokens, nodes, drafting = number * mix.sum() / steps, number * nodes / steps, number * drafts / steps
        prompts = tokens * self._prompt / max(self._output, 1.0)
        behind = self._catches_up * drafting * (tokens + prompts) / number
        # Where prompts fill every step, who is done sooner only makes room for more of them.
        part = np.minimum(1.0, self._piece / np.maximum(prompts, 1e-9)) if self._piece else 1.0
        depth = self._depth * np.minimum(part * drafting * self._acceptance.found, 1)
        work = Work(part * number, part * (number + nodes), load.context_tokens, 0, *(part * x for x in (drafting, nodes)), depth, part*behind)
        return part * tokens, work

    def learn(self, finished: Finished) -> None:
        seconds = finished.seconds
        self._for_trials = min(self._for_trials + TRIAL_SHARE * seconds, 8 * seconds)
        self._for_probes = min(self._for_probes + PROBE_SHARE * seconds, 2 * self._probe_price + PROBE_SHARE * seconds)
        self._for_lessons = min(self._for_lessons + LEARNING_SHARE * seconds, 4 * STEP_LESSON)
        shares = finished.shares
        if not shares:
            return
        stride = max(round(len(shares) * SHARE_LESSON / (LEARNING_SHARE * seconds)), 1)
        for share in shares if self._probing else shares[self._now % stride :: stride]:
            self._hear(share)
        warm = self._now > len(WARM_UP)
        if warm and not self._trial and self._for_lessons < 0:
            return
        if not warm and self._now in COLD:
            return
        self._for_lessons -= STEP_LESSON
        if self._costs is None:
            self._costs = StepCosts(finished)
        self._costs.learn(finished)

    def _hear(self, share) -> None:
        state = share.stats.kept
        if share.over:
            rate = 0.02 if self._output else 1.0
            self._prompt += rate * (state.start - self._prompt)
            self._output += rate * (share.stats.context_tokens - state.start - self._output)
            return
        if not share.budget:
            return
        self._catches_up = self._catches_up or share.behind > 0
        self._acceptance.learn(state, share, self._now)
        if not state.budget:
            # What paid may pay for others.
            self._for_probes += self._token_seconds * share.step.accepted
            idle = True
        if not self._trial:
            state.budget = self._budgets[state.difficulty]
