"""A contextual bandit over draft lengths: its context is the batch size, its reward the tokens per second.

As in Nightjar (Li et al. 2025, arXiv 2512.22420), which learns the best length for each batch size by trying, 0 tokens
among them, and counts what it costs to take up drafting again. That cost is in the time of the steps here, since a
drafter catches up in its next draft. Nightjar's schedule of trials and its offloading of the draft model are not
modelled: a length is tried for some steps at a time, at random, the more seldom the more often a batch size was seen.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.uniform import TOKENS, Uniform, whole

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import FinishedStep, Load

STEPS = 8
"""Steps for which a length is kept: taking up drafting again costs its first step more than the others."""
LEAST_TRIALS = 0.02
"""Share of choices at random however much is known: what is best changes."""
MEMORY = 64
"""Steps after which half of what was learned of a length is forgotten."""


@dataclass
class _Arm:
    """A length at a batch size: what came of it."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second; that of a length that was never tried is the best of all."""
        return self.tokens / self.seconds if self.seconds else math.inf

    def learn(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (1 / MEMORY)
        self.tokens, self.seconds = kept * self.tokens + tokens, kept * self.seconds + seconds


class _Context:
    """What is known of batches of about one size."""

    def __init__(self, most: int) -> None:
        self.arms = [_Arm() for _ in range(most + 1)]
        self.choice = self.left = self.choices = 0

    def budget(self, rng: random.Random) -> int:
        if self.left == 0:
            self.choices += 1
            tried = rng.random() < max(LEAST_TRIALS, 1 / math.sqrt(self.choices))
            known = [arm.rate for arm in self.arms]
            self.choice = rng.randrange(len(known)) if tried and math.inf not in known else known.index(max(known))
            self.left = STEPS
        self.left -= 1
        return self.choice


class Bandit(Uniform):
    """Lengths of 0 to ``most`` tokens. Batch sizes with the same power of two below them share what is known. The same
    ``seed`` and the same times give the same choices."""

    def __init__(self, most: int = TOKENS, seed: int = 0) -> None:
        self._most, self._rng = most, random.Random(seed)
        self._contexts: dict[int, _Context] = {}
        self._asked: tuple[_Context, int] | None = None

    @classmethod
    def from_argument(cls, argument: str) -> Bandit:
        most, _, seed = argument.partition(":")
        try:
            return cls(whole(most, least=1) if most else TOKENS, whole(seed) if seed else 0)
        except ValueError as error:
            usage = "write bandit, bandit:N or bandit:N:SEED with the most draft tokens, for example bandit:5"
            raise ValueError(f"{error}; {usage}") from error

    def budget(self, load: Load) -> int:
        context = self._contexts.setdefault(len(load.running).bit_length(), _Context(self._most))
        tokens = context.budget(self._rng)
        self._asked = context, tokens
        return tokens

    def learn(self, finished: FinishedStep) -> None:
        # What a step takes that also reads a prompt says little about drafts.
        if finished.requests and not finished.prompt_rows and self._asked is not None:
            context, tokens = self._asked
            emitted = sum(request.step.emitted for request in finished.requests)
            context.arms[tokens].learn(emitted, finished.seconds)
