"""A drafter whose pace and quality are set: each token takes so long, and is right with a given probability.

It knows the target's own answers, from a file of lines ``{"prompt": ids, "output": ids, prompt and answer}``, which is
what `specdec decode` writes. Whether the token at a position is right is drawn once, by prompt and position, so that
all who are compared have the same luck.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from random import Random

from ianvs_specdec.decoding import Context, Drafter, Output, Target, TokenTree


@lru_cache
def answers(file: str) -> dict[tuple[int, ...], list[int]]:
    """Prompt -> prompt and answer."""
    rows = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
    return {tuple(row["prompt"]): row["output"] for row in rows}


class Paced(Drafter):
    """Each token takes ``seconds`` and is the target's own with probability ``acceptance``; drafts have at most
    ``most`` tokens. ``lines``: whether an edge can have it draft ahead."""

    def __init__(
        self,
        truth: str,
        acceptance: float,
        seconds: float = 0.0,
        most: int = 64,
        seed: int = 0,
        lines: bool = True,
    ) -> None:
        self._truth, self._acceptance, self._seconds, self._most, self._seed = truth, acceptance, seconds, most, seed
        self.lines = lines
        self._coins: list[bool] = []

    def fork(self) -> Paced:
        return Paced(self._truth, self._acceptance, self._seconds, self._most, self._seed, self.lines)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        prompt = tuple(context.tokens[: context.prompt_tokens])
        # Of other prompts, such as a warm-up, nothing is known.
        self._answer = answers(self._truth).get(prompt, [])
        dice = Random(f"{self._seed} {prompt}")
        # Of all qualities from the same draws: what a better drafter misses, a worse one does, too.
        self._coins = [dice.random() < self._acceptance for _ in self._answer]
        self._vocabulary = target.vocabulary

    def line(self, context: Context) -> Iterator[tuple[int, float]]:
        for position in range(len(context.tokens), len(self._answer)):
            if self._seconds:
                time.sleep(self._seconds)
            token = self._answer[position]
            yield (token if self._coins[position] else (token + 1) % self._vocabulary), self._acceptance

    def propose(self, context: Context, budget: int) -> TokenTree:
        length = min(budget, self._most, context.remaining - 1)
        tokens = [token for _, (token, _) in zip(range(length), self.line(context), strict=False)]
        return TokenTree.chain(context.tokens[-1], tokens)
