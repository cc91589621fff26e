"""As many draft tokens as pay: the budgets with which all requests together get done soonest.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand, and
each request may get its own share of the rows that a step verifies. What is maximized are the tokens per second of the
steps that there will be after a while. Who gets more tokens from each step is done sooner: where easy and hard requests
come, hard ones are most of those that run, the more so the longer the drafts of the easy ones. By the requests as they
are now, these drafts would seem to bring too much at first, and too little later on.

For a single request it comes to the machine's time for each of its tokens: its share of what a step takes anyhow and
the time for its own rows, over the tokens that a step brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.evidence import Evidence, Floats
from ianvs_specdec.lengths.lessons import Lessons
from ianvs_specdec.lengths.plans import JOINED, DraftPlan, KeptPlans, Options
from ianvs_specdec.lengths.prices import CLEAR, Prices
from ianvs_specdec.lengths.prompts import Readers
from ianvs_specdec.lengths.running import REST, Outputs, Running, paces, patience
from ianvs_specdec.lengths.savings import Allowance, Savings
from ianvs_specdec.lengths.shapes import Shapes
from ianvs_specdec.lengths.steps import Apart, Best, Mix, Place, Steps
from ianvs_specdec.lengths.times import Times

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Finished, Load, Share, Stats

PLAN, PLANNING, SPENT, LONGER = 8, 0.0005, 0.0025, 1.5
"""Steps for which a plan holds at least if hardly anybody comes or leaves. Making one is reckoned with so many seconds
as long as nothing is measured, somewhat less than it takes, and should take no more than that share of the time: for a
small model, whose steps are short, plans hold longer, each by this factor than the one before."""
HURRY, AHEAD = 2.0, 8
"""Where much changes, plans are made sooner: at most for so many times that share, and so many of them at once."""
PLANS = 4
"""Plans for which the sizes of drafts hold, unless larger ones are possible."""
TRIAL, LOOK = 2, 20
"""Steps of a trial: a single one would not be believed; since a step without drafts, until it has to be looked at where
times have changed."""
CHANCES = 3
"""Trials that a change of times is worth at once."""
TOO_SHORT = 8
"""Tokens: with fewer to come, what a drafter's answer teaches is of no use to this request."""


class Goodput:
    """Each step's rows go where they save the machine time for each token, as long as they do.

    A budget's gain is the number of tokens that it lets a request expect. Once in a while a plan is made for all: steps
    from nobody drafting to everybody drafting at length are lined up, and the one with the most tokens per second is
    taken. Beside what the others have of that step, the best budget of each request is known for all difficulties. So
    at every step it takes the one for the difficulty that its latest draft leads to expect.
    Where that promises little more than the best step in which all draft the same, all do.
    """

    confidence = 0.0

    def __init__(self) -> None:
        self._times = Times()
        self._verify, self._draft = self._times.verify, self._times.draft
        self._prices = Prices(self._times)
        self._evidence, self._shapes = Evidence(), Shapes()
        self._plan = self._lasting = DraftPlan()
        self._until_plan = self._planned = 0
        self._until_probe = self._holds = PLAN
        self._options, self._until_options = Options.of(self._shapes), 0
        self._misses = self._evidence.misses
        self._by_difficulty = self._options.gains(self._misses)
        self._kept, self._outputs = KeptPlans(), Outputs()
        self._savings, self._readers, self._apart = Savings(), Readers(), Apart()
        self._planning = Allowance(PLANNING, HURRY * SPENT, AHEAD)
        self._since_trial, self._chances, self._changed = REST, 0, 0
        self._lessons = Lessons()
        self._probing = False
        self._holding, self._held, self._held_for = 0, 0, list[Running]()
        """For how many steps more the requests' budgets hold, and for how many they did since they were chosen."""

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        self._readers.add(load)
        if self._holding and self._until_plan > 0 and [stats.kept for stats in load.running] == self._held_for:
            self._evidence.step()
            self._holding -= 1
            self._held += 1
            held = zip(self._held_for, load.running, strict=True)
            return [request.budget if stats.remaining > 1 else 0 for request, stats in held]
        self._catch_up()
        running = [self._known(stats) for stats in load.running]
        self._evidence.step()
        if not self._verify.warm:
            return [0] * len(running)
        probing = None
        changed = abs(len(running) - self._planned) > JOINED * self._planned
        # Steps that contradict each other tell nothing: the trial lasts longer, twice as long at the most.
        undecided = self._plan.trial and self._verify.disputed and self._until_plan > -TRIAL
        if not undecided and (self._until_plan <= 0 or (changed and not self._resumed(len(running)))):
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
                request.experiment(budget)
            else:
                request.settle(budget)
        self._probing = probing is not None
        if probing is not None and not budgets[probing]:
            budgets[probing] = int(self._options.budgets[0])
        if not (self._plan.trial or self._probing):
            self._hold(running)
        return budgets

    def _hold(self, running: list[Running]) -> None:
        """Until something is to be looked at or is learned of drafts, the budgets hold as they are: to choose the same
        again at each step would cost a part of a small model's step."""
        moments = [-request.since % REST for request in running if not request.budget]
        self._holding, self._held_for = max(min(self._until_plan - 1, self._until_probe - 1, *moments), 0), running

    def _catch_up(self) -> None:
        """The budgets hold no longer; count the steps for which they did."""
        held, self._held, self._holding = self._held, 0, 0
        if held:
            self._until_plan -= held
            self._until_probe -= held
            self._since_trial += held
            for request in self._held_for:
                request.since += held

    def learn(self, finished: Finished) -> None:
        self._planning.took(finished.choosing_seconds)
        made, same = self._plan.trial or self._probing, self._plan.same
        due = not self._verify.warm or (same and self._until_plan <= self._held)
        for step in self._lessons.add(finished, made, due, same):
            self._learn_from(*step)

    def _learn_from(self, finished: Finished, made: bool, of_drafts: bool) -> None:
        for earning in (self._savings, self._planning, self._times):
            earning.earn(finished.seconds)
        if not finished.rows:
            self._times.read()
            return
        asked = [share for share in finished.shares if share.budget]
        if asked and not self._plan.same:
            self._catch_up()
        if self._times.hears(finished, made):
            self._learn_times(finished, asked)
        for share in finished.shares:
            stats = share.stats
            if share.over:
                self._outputs.add(stats.context_tokens - self._known(stats).start, early=stats.remaining > 0)
            elif share.budget and of_drafts:
                self._learn(share)
        if asked and len(self._options.budgets) < self._shapes.budget_count:
            self._until_plan = self._until_options = 0
            self._kept.clear()

    def _learn_times(self, finished: Finished, asked: Sequence[Share]) -> None:
        self._times.learn(finished, asked, bool(asked) or self._until_plan == 0)
        if self._verify.changed:
            self._catch_up()
            self._changed = self._evidence.now
            self._until_plan, self._holds = min(self._until_plan, PLAN), PLAN
            self._kept.clear()
        if len(asked) == 1 and (probed := asked[0].stats.kept.probed):
            # What a probe took is known now.
            drafting = finished.draft_seconds - self._draft.without(len(finished.shares)) * self._verify.speed
            self._savings.ask(min(max(drafting - probed, 0.0), probed))

    def _learn(self, share: Share) -> None:
        step, request = share.step, share.stats.kept
        ended, width = self._shapes.add(share)
        if request.probed:
            worth = self._lasting.token * step.accepted
            self._savings.ask(-min(worth, request.probed))
            if worth > request.probed:
                # What paid may pay for others.
                self._until_plan = self._until_probe = 0
                self._kept.clear()
            request.probed = 0.0
        failed = step.accepted < share.depth or ended
        self._evidence.learn(request.subject, step.drafted > 0, step.accepted, failed, width)

    def _known(self, stats: Stats) -> Running:
        if stats.kept is None:
            stats.kept = Running(self._evidence.request(stats.task), stats.context_tokens, self._evidence.now)
        request: Running = stats.kept
        return request

    def _chosen(self, request: Running, stats: Stats) -> int:
        """The request's budget by the plan."""
        # Where one token is to come, the step itself brings it.
        if stats.remaining < 2:
            return 0
        if self._plan.trial:
            return request.trial
        if self._plan.same:  # What is below comes to the same, at more of a short step's time.
            return self._plan.choices[0][0]
        plan, difficulty = self._plan, self._evidence.difficulty(request.subject)
        budget, saved, tokens = plan.rest[difficulty] if request.resting else plan.choices[difficulty]
        if not budget:
            return 0
        late = plan.late * self._outputs.missed(stats, tokens)
        return budget if self._evidence.found(request.subject) * saved > plan.call + late else 0

    def _plan_anew(self, load: Load, running: Sequence[Running]) -> None:
        """If there is time for that; if not, the plan before goes on. After a trial it is always time: the plans that
        follow pay for that."""
        if not self._planning.pay(anyway=self._plan.trial):
            self._plan, self._until_plan = self._lasting, PLAN
            return
        self._planned = len(running)
        self._plan = self._planned_for(load, running)

    def _resumed(self, number: int) -> bool:
        """Whether a plan for about so many requests still holds, which then goes on: where requests come and leave all
        the time, their number comes back."""
        now = self._evidence.now
        if not self._plan.trial:
            self._kept.add(self._planned, self._plan, now + self._until_plan)
        kept = self._kept.near(number, now)
        if kept is None:
            return False
        self._planned, self._lasting, until = kept
        self._plan, self._until_plan = self._lasting, until - now
        return True

    def _planned_for(self, load: Load, running: Sequence[Running]) -> DraftPlan:
        by_difficulty = self._gains()
        mix = self._mix(load, running, by_difficulty, CLEAR)
        same = self._fastest(load, mix.uniform(self._options)) if len(running) > 1 else None
        if same and not same.drafts:
            # Only requests that are told apart could begin.
            same = None
        best = same if same and self._apart.waits() else self._fastest(load, mix.ragged(self._options))
        plain = best.seconds_of_plain
        if self._savings.reach(len(running), plain):
            self._holds = PLAN
        changed, self._verify.changed = self._verify.changed, False
        if changed and self._savings.look(TRIAL, plain):
            # When times have changed, trials are worth more, and what a step without drafts takes is to be known.
            self._chances = CHANCES
            if self._verify.age(len(running)) >= LOOK:
                return self._trial(running, [0] * len(running))
        long_enough = self._planning.price / (SPENT * best.seconds)
        self._until_plan = self._holds = int(max(PLAN, min(LONGER * self._holds, long_enough)))
        self._lasting = self._prices.plan(self._options, by_difficulty, best.steps, best.place, load.context_tokens)
        cases = [best]
        # If to tell requests apart does not promise enough, all draft the same.
        if same and (best is same or not self._apart.pays(best.rate / same.rate)):
            self._lasting = self._lasting.uniform(same.steps.budgets(same.place, self._options)[0])
            cases = [same] if best is same else [same, best]
        wait = 0.0 if self._chances else patience(self._evidence.now - self._changed)
        # A plan follows every trial: while one is owed, no other trial.
        may = self._since_trial >= wait and self._planning.affords(0)
        trials = (self._attempt(load, running, case.steps, case.place) for case in cases) if may else ()
        return next((trial for trial in trials if trial), self._lasting)

    def _fastest(self, load: Load, steps: Steps) -> Best:
        """The one with the most tokens per second, by what is known of times."""
        return Best.of(steps, np.add(*self._prices.of(load, steps)))

    def _attempt(self, load: Load, running: Sequence[Running], steps: Steps, best: Place) -> DraftPlan | None:
        """A trial of what may turn out to be faster than the best step, if there is such a thing and it may be paid."""
        if not steps.asked[best]:
            # Where answers are short, nearly all rest: so nobody would ever find out what drafts of many take.
            mix = self._mix(load, running, self._by_difficulty, 1.0)
            steps, best = mix.ragged(self._options), (0, 0)
        hopeful = self._prices.hopeful(load, steps, best, self._savings, TRIAL)
        if hopeful is None:
            return None
        # Whoever has begun and stopped of late sits it out: at the boundary, nobody is to change all the time.
        budgets = steps.budgets(hopeful[0], self._options)
        each = zip(running, load.running, budgets, strict=True)
        budgets = [0 if request.stopped or stats.remaining < 2 else budget for request, stats, budget in each]
        if not any(budgets):
            return None
        # What is not known for sure is worth a trial.
        self._savings.attempt(TRIAL * hopeful[1])
        self._chances = max(self._chances - 1, 0)
        return self._trial(running, budgets)

    def _mix(self, load: Load, running: Sequence[Running], by_difficulty: Floats, clear: float) -> Mix:
        """What there is to know of these requests. Of drafts that should rest, so ``clear`` a gain counts. Whoever has
        one token left to come counts as before: others of its kind take its place."""
        subjects = [request.subject for request in running]
        found = np.array([self._evidence.found(subject) for subject in subjects])
        gains = by_difficulty[[self._evidence.difficulty(subject) for subject in subjects]] * found[:, None]
        gains /= np.array([[clear if request.resting else 1.0] for request in running])
        emitted = (1 + gains[:, 0]).tolist()
        missed = [self._outputs.missed(stats, tokens) for stats, tokens in zip(load.running, emitted, strict=True)]
        pace = paces(running, load.running, self._evidence.now - 1)
        return Mix(gains, found, np.array(missed), pace, self._readers.known())

    def _trial(self, running: Sequence[Running], budgets: Sequence[int]) -> DraftPlan:
        """Have the requests draft so much in the steps to come. They tell more than other plans were made of."""
        self._since_trial, self._until_plan = 0, TRIAL
        self._kept.clear()
        for request, budget in zip(running, budgets, strict=True):
            request.trial = budget
        return DraftPlan(trial=True)

    def _gains(self) -> Floats:
        """Those of ``Options.gains``, for what is known by now."""
        self._evidence.settle()
        self._until_options -= 1
        if self._until_options < 0:
            self._options, self._until_options = Options.of(self._shapes), PLANS
        elif self._misses is self._evidence.misses:
            return self._by_difficulty
        self._misses = self._evidence.misses
        self._by_difficulty = self._options.gains(self._misses, self._outputs.going_on)
        return self._by_difficulty

    def _probe(self, running: Sequence[Running], load: Load) -> int | None:
        """Once in a while, ask the drafter of a request for the least that is not asked otherwise: which one."""
        for index, (request, stats) in enumerate(zip(running, load.running, strict=True)):
            if not request.budget and request.since > REST and stats.remaining > TOO_SHORT:
                price = self._prices.probe(self._options, load, stats)
                if not self._savings.allow(price):
                    return None
                self._savings.ask(price)
                request.probed, request.since = price, 0
                return index
        return None
