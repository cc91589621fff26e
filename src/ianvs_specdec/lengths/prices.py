"""What steps with drafts take, and what a draft of one request adds to the step of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.costs import SHORTEST
from ianvs_specdec.lengths.plans import DraftPlan, Options
from ianvs_specdec.lengths.steps import Place, Steps

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Load, Stats
    from ianvs_specdec.lengths.evidence import Floats
    from ianvs_specdec.lengths.savings import Savings
    from ianvs_specdec.lengths.times import Times

CLEAR = 1.5
"""A request that rests begins to speculate if drafts are thought to bring so many times what they must."""


class Prices:
    """Seconds, by what was learned of ``times``."""

    def __init__(self, times: Times) -> None:
        self._verify, self._draft = times.verify, times.draft

    def of(self, load: Load, steps: Steps, hoped: bool = False) -> tuple[Floats, Floats]:
        """What drafting and verifying take in each of the steps. A token of a prompt is read once, however many steps
        there are, so its time is no part of a step's price: only what reading takes at all is."""
        drafts = steps.requests, steps.asked, steps.depth, steps.nodes, steps.behind
        contexts = load.context_tokens / steps.number * steps.requests
        verifying = self._verify.at(steps.rows, contexts, steps.requests, hoped=hoped)
        verifying = verifying + self._verify.for_reading * steps.reading
        return self._draft.at(*drafts, hoped=hoped) * self._verify.speed, verifying

    def hopeful(
        self, load: Load, steps: Steps, best: Place, savings: Savings, trial: int
    ) -> tuple[Place, float] | None:
        """The step that may be hoped for to be the fastest, where a ``trial`` of so many of them may be paid, and the
        seconds that each is thought to lose; None: the ``best`` one is as fast."""
        drafting, verifying = self.of(load, steps)
        taken = drafting + verifying
        # What is done already is known: there is nothing to hope for, but that more rows take no longer.
        hoped_drafting, less = self.of(load, steps, hoped=True)
        hoped = np.where(steps.rows < steps.rows[best], less, np.maximum(less, verifying[best]))
        # Where nobody drafts, what is known of drafts was learned long ago, or of single ones that had much to read.
        hoped += drafting if steps.asked[best] else hoped_drafting
        hoped[steps.tokens == steps.tokens[best]] = taken[best]
        lost = (taken + hoped) / 2 - steps.tokens * float(taken[best] / steps.tokens[best])
        savings.saved_for = trial * max(float(lost[steps.fastest(hoped)]), 0.0)
        tried = steps.fastest(hoped, lost <= savings.fund)
        return None if steps.tokens[tried] == steps.tokens[best] else (tried, float(lost[tried]))

    def plan(self, options: Options, gains: Floats, steps: Steps, best: Place, context: int) -> DraftPlan:
        """What decides for each request where the step at ``best`` is taken: its budget is the best one beside what
        the others have of that step. ``gains`` are ``[difficulties, budgets]``."""
        number = steps.number
        deepest = steps.depth[best] if number > 1 else 0.0
        # Of the step without any drafts, then beside the others' with no draft and with each.
        rows = 1 + (number - 1) / number * steps.rows[best] + np.append(0.0, options.nodes + options.scouts)
        alone, least, *larger = self._verify.at(np.append(number, rows), context, number)
        step, each, call, level, node, late = (weight * self._verify.speed for weight in self._draft.weights)
        reading = self._verify.for_reading * steps.reading[best]
        token = each + float(alone + reading + step + level * deepest) / number
        if steps.bound[best] and number > 1:
            # There are as many steps whatever this request drafts: a token saves its own part of one.
            fewer = np.array([number - 1.0, number])
            token = each + float(np.diff(self._verify.at(fewer, context / number * fewer, fewer))[0])
        dearer = np.array(larger) - least + level * np.maximum(options.depths - deepest, 0.0) + node * options.nodes
        dearer = dearer + late * (1 + gains)
        choices, rest = (
            options.best(more, token * more - dearer, (1 + more) / np.maximum(token + call + dearer, SHORTEST))
            for more in (gains, gains / CLEAR)
        )
        return DraftPlan(choices, rest, call, late, token)

    def probe(self, options: Options, load: Load, stats: Stats) -> float:
        """What one more request with the smallest budget costs, if nothing of it is accepted."""
        rows = len(load.running) + np.array([0.0, options.nodes[0] + options.scouts])
        verify = self._verify.at(rows, load.context_tokens, len(load.running), roughly=True)
        draft = self._draft.at(
            0.0, 1.0, options.depths[0], options.nodes[0], stats.unread_tokens
        ) - self._draft.without(0)
        return float(verify[1] - verify[0] + draft * self._verify.speed)
