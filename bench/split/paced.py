"""A drafter whose pace and quality are set: each token takes ``seconds``, and is right with a given probability, drawn
by prompt and position. It knows the target's own answers, from a file that `specdec decode` writes.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random

from ianvs_specdec.engine import Context, Drafter, Output, Target, TokenTree
from ianvs_specdec.engine.contracts import Continuations

OTHERS = (0.24, 0.15, 0.07, 0.08)
"""Of the tokens that are not the embedded edge model's likeliest, these shares of the embedded cloud model's are its
second to fifth choice (greedy, 352 tokens of 8 answers)."""


@lru_cache
def answers(file: str) -> dict[tuple[int, ...], list[int]]:
    """Prompt -> prompt and answer."""
    rows = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
    return {tuple(row["prompt"]): row["output"] for row in rows}


class Paced(Drafter):
    """The likeliest token is the target's own with probability ``right``, and otherwise one of the next choices is with
    the probabilities ``OTHERS``. Drafts have at most ``most`` tokens."""

    supports_continuations = True

    def __init__(self, truth: str, right: float, seconds: float = 0.0, most: int = 64) -> None:
        self._truth, self._right, self._seconds, self._most = truth, right, seconds, most

    def fork(self) -> Paced:
        return copy.copy(self)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        prompt = tuple(context.tokens[: context.prompt_tokens])
        # Of other prompts, such as a warm-up, nothing is known.
        self._answer = answers(str(self._truth)).get(prompt, [])
        dice = Random(str(prompt))
        # Of all qualities from the same draws: what a better drafter misses, a worse one does, too.
        right = [dice.random() < self._right for _ in self._answer]
        ranks, shares = range(1, len(OTHERS) + 2), [*OTHERS, 1 - sum(OTHERS)]
        self._ranks = [0 if hit else dice.choices(ranks, shares)[0] for hit in right]
        self._vocabulary = target.vocabulary

    def choices(self, position: int) -> list[tuple[int, float]]:
        """What may be the token there: the likeliest first, and how likely each is."""
        token, rank = self._answer[position], self._ranks[position]
        likely = [self._right, *((1 - self._right) * share for share in OTHERS)]
        return [((token + (n != rank) * (n + 1)) % self._vocabulary, chance) for n, chance in enumerate(likely)]

    def continuations(self, context: Context) -> Continuations:
        return _Lines(self, self._seconds, len(context.tokens), len(self._answer))

    def propose(self, context: Context, budget: int) -> TokenTree:
        held = len(context.tokens)
        end = min(held + min(budget, self._most, context.remaining - 1), len(self._answer))
        time.sleep(self._seconds * max(0, end - held))
        return TokenTree.chain(context.tokens[-1], [self.choices(position)[0][0] for position in range(held, end)])


class _Lines:
    """Its choices, wherever a line leads: after a wrong token none is right."""

    def __init__(self, drafter: Paced, seconds: float, held: int, end: int) -> None:
        self._drafter, self._seconds, self._end, self._positions = drafter, seconds, end, [held]

    def grow(self, nodes: Sequence[int]) -> list[list[tuple[int, float]]]:
        asked = [self._positions[node] for node in nodes]
        time.sleep(self._seconds)
        found = [self._drafter.choices(position) if position < self._end else [] for position in asked]
        for position, choices in zip(asked, found, strict=True):
            self._positions += [position + 1] * len(choices)
        return found
