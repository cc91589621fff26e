"""What a query will cost in the cloud, from its length and from the answers so far."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.common.types import Query

CHARACTERS_PER_TOKEN = 4.0
"""Of English text with the tokenizers of today, before the first answer tells."""

KEPT = 0.98
"""Weight of what was known after each answer: the last fifty or so count."""

PRIOR = 4.0
"""What is assumed in the beginning counts like so many answers."""


class Prices:
    """Prices are per million tokens, ``completion_tokens`` is the length of an answer to expect before the first one.
    Not thread-safe."""

    def __init__(self, prompt: float, completion: float, completion_tokens: float) -> None:
        self._prompt, self._completion = prompt / 1e6, completion / 1e6
        self._turns, self._tokens = PRIOR, PRIOR * completion_tokens
        self._characters, self._prompt_tokens = 1000 * PRIOR * CHARACTERS_PER_TOKEN, 1000 * PRIOR

    def expected(self, query: Query) -> float:
        """Cost of all turns of a query."""
        each, rate = self._tokens / self._turns, self._prompt_tokens / self._characters
        turns = len(query.turns)
        prompt = _characters(query) * rate + turns * (turns - 1) / 2 * each
        return prompt * self._prompt + turns * each * self._completion

    def learn(self, query: Query, response: Mapping[str, Any]) -> float | None:
        """The cost of an answer, by which the next estimates go; None where there is none."""
        usage, turns = response.get("usage") or {}, len(response.get("turns") or ())
        completion, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if not turns or completion is None or prompt is None:
            return None
        self._turns, self._tokens = KEPT * self._turns + turns, KEPT * self._tokens + completion
        own = prompt - (turns - 1) / 2 * completion
        if turns == len(query.turns) and own > 0:
            self._characters = KEPT * self._characters + _characters(query)
            self._prompt_tokens = KEPT * self._prompt_tokens + own
        cost = response.get("cost")
        return float(cost) if cost is not None else prompt * self._prompt + completion * self._completion


def _characters(query: Query) -> int:
    """Characters of the user's in the prompts of all turns: each turn repeats those before it."""
    turns = itertools.accumulate(map(len, query.turns))
    return sum(len(query.system) + so_far for so_far in turns)
