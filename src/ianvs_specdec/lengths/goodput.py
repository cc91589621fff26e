"""As many draft tokens as pay: the budgets with the most expected output per expected second, over all requests.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand, and
each request gets its own share of the rows that a step verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.costs import DraftCosts, StepCosts
from ianvs_specdec.lengths.evidence import Evidence, Floats, Subject
from ianvs_specdec.lengths.plans import Options, Place, Plan, Steps
from ianvs_specdec.lengths.shapes import Shapes

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Load, Share, Stats

PLAN, PLANNING, SPENT, LONGER = 8, 0.001, 0.01, 1.5
"""Steps for which a plan holds at least if hardly anybody comes or leaves. Making one takes about so many seconds, and
should take no more than that share of the time: for a small model, whose steps are short, plans hold longer, each by
this factor than the one before."""
HURRY, AHEAD = 2.0, 8
"""Where much changes, plans are made sooner: at most for so many times that share, and so many of them at once."""
PLANS = 4
"""Plans for which the sizes of drafts hold, unless larger ones are possible."""
JOINED = 0.25
"""A plan no longer holds when the number of requests has changed by more than that share."""
REST, CLEAR = 40, 1.5
"""Steps between two moments at which a request begins to speculate, unless drafts bring so many times what they are
thought to. At the boundary, noise would have it change with every step: so it does once in 20 steps on average."""
TRIAL, LOOK = 2, 20
"""Steps of a trial: a single one would not be believed. When times have changed there is one after so many others."""
CHANCES = 3
"""Trials that a change of times is worth; otherwise there is one in ``REST`` steps."""
PROBE = 0.006
"""The share of the time that may be lost on trials, and on asking drafters again that did not pay."""
OUTPUTS = 100
"""Outputs over which their length is averaged."""
TOO_SHORT = 8
"""Tokens: with fewer to come, what a drafter's answer teaches is of no use to this request."""


@dataclass(eq=False, slots=True)
class _Running:
    """One request: what is known of it, its budget, the steps since it last began to speculate, and what asking it
    again in the latest step was thought to cost. ``tried``: it speculated in a trial only, where its
    budget is ``trial``. Its context held ``start`` tokens at first."""

    subject: Subject
    start: int
    budget: int = 0
    since: int = REST
    probed: float = 0.0
    trial: int = 0
    tried: bool = False

    @property
    def resting(self) -> bool:
        """Whether it should not begin to speculate."""
        return self.budget == 0 and self.since % REST > 0 and not self.tried

    def settle(self, budget: int) -> None:
        """The next step verifies so many draft tokens."""
        if (budget and not self.budget) or self.tried:
            self.since = 0
        self.budget, self.tried = budget, False


class Goodput:
    """Each step's rows go to the requests in which they are likeliest to be accepted, as long as that pays.

    A budget's gain is the number of tokens that it lets a request expect. Once in a while a plan is made for all: steps
    from nobody drafting to everybody drafting at length are lined up by gain per row, and the point with the most
    tokens per second is taken. What a token is worth there, and what a row and a level cost, then decides for each
    request at every step, by what came of its latest draft.
    """

    confidence = 0.0

    def __init__(self) -> None:
        self._verify, self._draft = StepCosts(), DraftCosts()
        self._evidence, self._shapes = Evidence(), Shapes()
        self._plan = self._lasting = Plan()
        self._until_plan = self._planned = 0
        self._until_probe = self._holds = PLAN
        self._options, self._until_options = Options.of(self._shapes), 0
        self._misses = self._evidence.misses
        self._by_difficulty = self._options.gains(self._misses)
        self._kept: dict[int, tuple[Plan, int]] = {}
        """By number of requests: a plan, and the step up to which it holds."""
        self._outputs, self._output = 0, 0.0
        """Outputs that ended, and their tokens on average."""
        self._fund, self._thought = 0.0, (AHEAD - 1) * PLANNING
        self._since_trial, self._chances, self._looked = REST, 0, 0
        self._quiet, self._slept, self._sleeping = 0, 0, list[_Running]()

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        if self._quiet and [stats.kept for stats in load.running] == self._sleeping:
            self._quiet -= 1
            self._slept += 1
            return [0] * len(self._sleeping)
        self._wake()
        running = [self._known(stats) for stats in load.running]
        self._evidence.step()
        if not self._verify.warm:
            return [0] * len(running)
        probing = None
        changed = abs(len(running) - self._planned) > JOINED * self._planned
        if self._until_plan <= 0 or (changed and not self._resumed(len(running))):
            self._plan_anew(load, running)
        self._until_probe -= 1
        if self._until_probe <= 0:
            self._until_probe = PLAN
            probing = self._probe(running, load)
        self._until_plan -= 1
        self._since_trial += 1
        budgets = [self._chosen(request, stats) for request, stats in zip(running, load.running, strict=True)]
        for request, budget in zip(running, budgets, strict=True):
            if self._plan.trial:
                request.tried = request.tried or budget > request.budget == 0
                # The moment to begin is not lost for a trial.
                request.since += request.resting
            else:
                request.since += 1
                request.settle(budget)
        if probing is not None and not budgets[probing]:
            budgets[probing] = int(self._options.budgets[0])
        if not self._plan.trial and not any(budgets):
            self._sleep(running)
        return budgets

    def _sleep(self, running: list[_Running]) -> None:
        """Nobody drafts: until something is to be looked at, nothing is learned that would change that. Where drafts do
        not pay, to find that out again at each step would cost a part of a small model's step."""
        rests = [-request.since % REST for request in running]
        self._quiet, self._sleeping = max(min(self._until_plan - 1, self._until_probe - 1, *rests), 0), running

    def _wake(self) -> None:
        """Catch up with the steps that were slept through."""
        slept, self._slept, self._quiet = self._slept, 0, 0
        if slept:
            self._evidence.step(slept)
            self._until_plan -= slept
            self._until_probe -= slept
            self._since_trial += slept
            for request in self._sleeping:
                request.since += slept

    def learn(self, finished: Finished) -> None:
        rows = finished.rows
        taken = finished.draft_seconds + finished.verify_seconds
        self._fund += PROBE * taken
        self._thought = min(self._thought + HURRY * SPENT * taken, AHEAD * PLANNING)
        if not rows:
            return
        # Where every step has rows of prompts, such steps tell the most there is to know.
        telling = True
        if not finished.prompt_rows or not self._verify.warm:
            telling = self._verify.add(rows + finished.prompt_rows, finished.verify_seconds, finished.context)
            if self._verify.changed:
                self._wake()
                self._until_plan, self._holds = min(self._until_plan, PLAN), PLAN
                self._kept.clear()
        asked = [share for share in finished.shares if share.budget]
        if telling and (asked or self._until_plan == 0):
            depth, nodes = max((share.depth for share in asked), default=0), sum(share.step.drafted for share in asked)
            behind = sum(share.behind for share in asked)
            self._draft.add(len(asked), depth, nodes, behind, finished.draft_seconds / self._verify.speed)
            if len(asked) == 1 and (probed := asked[0].stats.kept.probed):
                # What a probe took is known now.
                drafting = finished.draft_seconds - self._draft.weights[0] * self._verify.speed
                self._fund -= min(max(drafting - probed, 0.0), probed)
        for share in finished.shares:
            if share.over:
                self._learn_output(share.stats)
            elif share.budget:
                self._learn(share)
        if asked and len(self._options.budgets) < self._shapes.budget_count:
            self._until_plan = self._until_options = 0
            self._kept.clear()

    def _learn(self, share: Share) -> None:
        step, request = share.step, share.stats.kept
        ended, width = self._shapes.add(share)
        if request.probed:
            worth = step.accepted * self._lasting.token
            self._fund += min(worth, request.probed)
            if worth > request.probed:
                # What paid may pay for others.
                self._until_plan = self._until_probe = 0
                self._kept.clear()
        request.probed = 0.0
        failed = step.accepted < share.depth or ended
        self._evidence.learn(request.subject, step.drafted > 0, step.accepted, failed, width)

    def _learn_output(self, stats: Stats) -> None:
        self._outputs += 1
        length = stats.context_tokens - self._known(stats).start
        self._output += (length - self._output) / min(self._outputs, OUTPUTS)

    def _left(self, stats: Stats) -> float:
        """About how many tokens a request will still emit: where outputs end after so many on average, and not all at
        the same length, it is as many at any time."""
        return min(stats.remaining, self._output) if self._outputs else stats.remaining

    def _known(self, stats: Stats) -> _Running:
        if stats.kept is None:
            stats.kept = _Running(self._evidence.request(stats.task), stats.context_tokens)
        request: _Running = stats.kept
        return request

    def _chosen(self, request: _Running, stats: Stats) -> int:
        """The request's budget by the plan."""
        # Where one token is to come, the step itself brings it.
        if stats.remaining < 2:
            return 0
        if self._plan.trial:
            return request.trial
        plan, difficulty = self._plan, self._evidence.difficulty(request.subject)
        budget, saved, tokens = plan.rest[difficulty] if request.resting else plan.choices[difficulty]
        if not budget:
            return 0
        # What a drafter has to catch up with serves all steps to come.
        late = plan.late * (stats.behind - tokens) / max(self._left(stats) / tokens, 1.0) if stats.behind else 0.0
        return budget if self._evidence.found(request.subject) * saved > plan.call + late else 0

    def _plan_anew(self, load: Load, running: Sequence[_Running]) -> None:
        """If there is time for that; if not, the plan before goes on. After a trial it is always time."""
        if self._thought < PLANNING and not self._plan.trial:
            self._plan, self._until_plan = self._lasting, PLAN
            return
        self._thought -= PLANNING
        self._planned = len(running)
        self._plan = self._planned_for(load, running)

    def _resumed(self, number: int) -> bool:
        """Whether a plan for about so many requests still holds, which then goes on: where requests come and leave all
        the time, their number comes back."""
        now = self._evidence.now
        if not self._plan.trial:
            self._kept[self._planned] = self._plan, now + self._until_plan
        self._kept = {one: kept for one, kept in self._kept.items() if kept[1] > now}
        near = [one for one in self._kept if abs(number - one) <= JOINED * one]
        if not near:
            return False
        self._planned = min(near, key=lambda one: abs(number - one))
        self._plan, until = self._kept[self._planned]
        self._lasting, self._until_plan = self._plan, until - now
        return True

    def _planned_for(self, load: Load, running: Sequence[_Running]) -> Plan:
        by_difficulty = self._gains()
        subjects = [request.subject for request in running]
        found = np.array([self._evidence.found(subject) for subject in subjects])
        gains = by_difficulty[[self._evidence.difficulty(subject) for subject in subjects]] * found[:, None]
        # Of drafts that should rest, only a clear gain counts.
        gains /= np.array([[CLEAR if request.resting else 1.0] for request in running])
        left = np.array([stats.remaining - 1.0 for stats in load.running])
        gains[left < 1] = 0.0
        # What a request's drafter has missed is read once, what a step emits with every draft.
        emitted = 1 + gains[:, 0]
        missed = np.maximum(np.array([stats.behind for stats in load.running]) - emitted, 0.0)
        behind = missed / np.maximum(np.array([self._left(stats) for stats in load.running]) / emitted, 1.0)
        steps, context = Steps.lined_up(self._options, gains, found, behind), _context(load)
        # Prompts are read once, however many steps there are: the time that they take is no part of a step's price.
        drafting = self._draft.at(steps.asked, steps.depth, steps.nodes, steps.behind) * self._verify.speed
        verifying = self._verify.at(steps.rows, context)
        taken = drafting + verifying
        if self._verify.changed and self._evidence.now - self._looked >= LOOK:
            # When times have changed, what a step without drafts takes is to be known, and trials are worth more.
            self._verify.changed, self._chances, self._looked = False, CHANCES, self._evidence.now
            self._fund += float(taken[0, 0])
            if self._verify.age(steps.number) >= LOOK:
                self._since_trial, self._until_plan = 0, TRIAL
                for request in running:
                    request.trial = 0
                return Plan(trial=True)
        best = steps.fastest(taken)
        # What is done already is known: there is nothing to hope for, but that more rows take no longer.
        hoped = self._verify.at(steps.rows, context, hoped=True)
        hoped = drafting + np.where(steps.rows < steps.rows[best], hoped, np.maximum(hoped, verifying[best]))
        hoped[steps.tokens == steps.tokens[best]] = taken[best]
        self._holds = int(max(PLAN, min(LONGER * self._holds, PLANNING / (SPENT * float(taken[best])))))
        self._until_plan = self._holds
        lost = (taken + hoped) / 2 - steps.tokens * float(taken[best] / steps.tokens[best])
        tried = steps.fastest(hoped, lost <= self._fund)
        self._lasting = self._priced(by_difficulty, steps, best, taken, context)
        if steps.tokens[tried] == steps.tokens[best] or (self._since_trial < REST and not self._chances):
            return self._lasting
        # What is not known for sure is worth a trial.
        self._fund -= TRIAL * max(float(lost[tried]), 0.0)
        self._since_trial, self._until_plan = 0, TRIAL
        self._chances = max(self._chances - 1, 0)
        self._kept.clear()
        for request, budget in zip(running, steps.budgets(tried, self._options), strict=True):
            request.trial = budget
        return Plan(trial=True)

    def _gains(self) -> Floats:
        """Those of ``Options.gains``, for what is known by now."""
        self._evidence.settle()
        self._until_options -= 1
        if self._until_options < 0:
            self._options, self._until_options = Options.of(self._shapes), PLANS
        elif self._misses is self._evidence.misses:
            return self._by_difficulty
        self._misses = self._evidence.misses
        self._by_difficulty = self._options.gains(self._misses)
        return self._by_difficulty

    def _priced(
        self,
        gains: Floats,
        steps: Steps,
        best: Place,
        taken: Floats,
        context: int,
    ) -> Plan:
        """What decides for each request where the steps take so long, and the one at ``best`` is taken: its budget is
        the best one beside the others' of that step, which are that step without one of its size."""
        options, number = self._options, steps.number
        others = (number - 1) / number
        deepest = steps.depth[best] if number > 1 else 0.0
        rows = 1 + others * steps.rows[best] + np.append(0.0, options.nodes + options.scouts)
        verify = self._verify.at(rows, context)
        step, call, level, node, late = (weight * self._verify.speed for weight in self._draft.weights)
        asked, nodes, behind = (others * one[best] for one in (steps.asked, steps.nodes, steps.behind))
        without = verify[0] + step + call * asked + level * deepest + node * nodes + late * behind
        tokens = 1 + others * steps.tokens[best]
        dearer = verify[1:] - verify[0] + level * np.maximum(options.depths - deepest, 0.0) + node * options.nodes
        dearer = dearer + late * (1 + gains)
        choices, rest = (
            options.best(gains, more * without / tokens - dearer, (tokens + more) / (without + call + dearer))
            for more in (gains, gains / CLEAR)
        )
        return Plan(choices, rest, call, late, float(without / tokens))

    def _probe(self, running: Sequence[_Running], load: Load) -> int | None:
        """Once in a while, ask the drafter of a request for the least that is not asked otherwise: which one."""
        for index, (request, stats) in enumerate(zip(running, load.running, strict=True)):
            if not request.budget and request.since > REST and stats.remaining > TOO_SHORT:
                price = self._price(load, stats)
                if self._fund < price:
                    return None
                self._fund -= price
                request.probed, request.since = price, 0
                return index
        return None

    def _price(self, load: Load, stats: Stats) -> float:
        """Seconds that one more request with the smallest budget costs, if nothing of it is accepted."""
        options = self._options
        rows = len(load.running) + np.array([0.0, options.nodes[0] + options.scouts])
        verify = self._verify.at(rows, _context(load))
        draft = self._draft.at(1.0, options.depths[0], options.nodes[0], stats.behind) - self._draft.weights[0]
        return float(verify[1] - verify[0] + draft * self._verify.speed)


def _context(load: Load) -> int:
    return sum([stats.context_tokens for stats in load.running])
