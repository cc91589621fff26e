"""Speculation that is switched off and on by force, and a drafter that is asked at every position instead."""

from __future__ import annotations

import functools
import random

from ianvs_specdec.engine import Drafter, TokenTree
from tests.support.budgets import Budgets

BUDGET = 6
LONGEST_ON, LONGEST_OFF = 2, 4


class Switched(Budgets):
    """Off for some steps, on for some, and so on, ``times`` switches for each request; then off. Requests of another
    task switch at other times."""

    def __init__(self, times: int) -> None:
        schedule = functools.cache(functools.partial(_schedule, times))
        super().__init__(lambda stats, step: BUDGET if schedule(stats.task)[step : step + 1] == [True] else 0)


def _schedule(times: int, task: str) -> list[bool]:
    """For each step whether speculation is on."""
    rng, schedule = random.Random(task), []
    for number in range(times):
        on = number % 2 == 1
        schedule += [on] * rng.randint(1, LONGEST_ON if on else LONGEST_OFF)
    return schedule


class EveryPosition(Drafter):
    """Has ``inner`` draft before every token: what it says when it never pauses. ``trees`` has it by position."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.roots_in_prompt = inner.roots_in_prompt
        self.trees: dict[int, TokenTree] = {}

    def prepare(self, target):
        return self._inner.prepare(target)

    def begin(self, target, context, prefill):
        self._inner.begin(target, context, prefill)

    def propose(self, context, budget):
        self.trees[len(context.tokens)] = self._inner.propose(context, budget)
        return TokenTree.chain(context.tokens[-1])

    def observe(self, observation):
        self._inner.observe(observation)

    def end(self):
        self._inner.end()


def by_position(trees, result, prompt):
    """The trees of a decoded request, by the number of tokens up to their root."""
    found, position = {}, len(prompt) + len(result.token_ids) - sum(step.emitted for step in result.trace.steps)
    for tree, step in zip(trees, result.trace.steps, strict=True):
        found[position] = tree
        position += step.emitted
    return found


def right(tree, text, position):
    """How many tokens of a tree that is rooted at the end of ``text[:position]`` are what follows there."""
    node, accepted = 0, 0
    for token in text[position:]:
        below = [child for child in tree.children[node] if tree.tokens[child] == token]
        if not below:
            break
        node, accepted = below[0], accepted + 1
    return accepted
