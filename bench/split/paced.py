"""A drafter whose pace and quality are set: each token takes so long, and is right with a given probability.

It knows the target's own answers, from a file of lines ``{"prompt": ids, "output": ids, prompt and answer}``, which is
what `specdec decode` writes. Whether the token at a position is right is drawn once, by prompt and position, so that
all who are compared have the same luck.
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
from ianvs_specdec.engine.contracts import Lines


@lru_cache
def answers(file: str) -> dict[tuple[int, ...], list[int]]:
    """Prompt -> prompt and answer."""
    rows = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
    return {tuple(row["prompt"]): row["output"] for row in rows}


SECONDS = (0.24, 0.15, 0.07, 0.08)
"""Of the tokens that the embedded edge model's likeliest one is not, so many of the embedded cloud model's are its
second to fifth choice (greedy, 352 tokens of 8 answers)."""


class Paced(Drafter):
    """Each step takes ``seconds``, and ``further`` for each line but one; the likeliest token is the target's own with
    probability ``acceptance``, and otherwise one of the next choices is with the probabilities ``others``. Drafts have
    at most ``most`` tokens. ``lines``: whether an edge can have it draft ahead."""

    def __init__(
        self,
        truth: str,
        acceptance: float,
        seconds: float = 0.0,
        most: int = 64,
        seed: int = 0,
        lines: bool = True,
        others: Sequence[float] = SECONDS,
        further: float = 0.0,
    ) -> None:
        self._truth, self._acceptance, self._seconds, self._most, self._seed = truth, acceptance, seconds, most, seed
        self.lines, self._others, self._further = lines, others, further
        self._ranks: list[int] = []

    def fork(self) -> Paced:
        return copy.copy(self)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        prompt = tuple(context.tokens[: context.prompt_tokens])
        # Of other prompts, such as a warm-up, nothing is known.
        self._answer = answers(self._truth).get(prompt, [])
        dice = Random(f"{self._seed} {prompt}")
        # Of all qualities from the same draws: what a better drafter misses, a worse one does, too.
        right = [dice.random() < self._acceptance for _ in self._answer]
        none = len(SECONDS) + 1
        shares = [*SECONDS, 1 - sum(SECONDS)]
        self._ranks = [0 if hit else dice.choices(range(1, none + 1), shares)[0] for hit in right]
        self._vocabulary = target.vocabulary

    def choices(self, position: int) -> list[tuple[int, float]]:
        """What may be the token there: the likeliest first, and how likely each is."""
        token, rank = self._answer[position], self._ranks[position]
        likely = [self._acceptance, *((1 - self._acceptance) * share for share in self._others)]
        return [((token + (n != rank) * (n + 1)) % self._vocabulary, chance) for n, chance in enumerate(likely)]

    def wait(self, lines: int) -> None:
        """For a step of so many."""
        if self._seconds:
            time.sleep(self._seconds + (lines - 1) * self._further)

    def lines_behind(self, context: Context) -> Lines:
        return _Lines(self, len(context.tokens), len(self._answer))

    def propose(self, context: Context, budget: int) -> TokenTree:
        held = len(context.tokens)
        tokens = []
        for position in range(held, min(held + min(budget, self._most, context.remaining - 1), len(self._answer))):
            self.wait(1)
            tokens.append(self.choices(position)[0][0])
        return TokenTree.chain(context.tokens[-1], tokens)


class _Lines:
    """What it says, wherever a line leads: behind a wrong token nothing is right."""

    def __init__(self, drafter: Paced, held: int, end: int) -> None:
        self._drafter, self._end, self._positions = drafter, end, [held]

    def grow(self, nodes: Sequence[int]) -> list[list[tuple[int, float]]]:
        asked = [self._positions[node] for node in nodes]
        self._drafter.wait(len(nodes))
        found = [self._drafter.choices(position) if position < self._end else [] for position in asked]
        for position, choices in zip(asked, found, strict=True):
            self._positions += [position + 1] * len(choices)
        return found
