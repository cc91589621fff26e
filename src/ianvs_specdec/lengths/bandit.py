"""A contextual bandit over draft lengths: the context is the batch size, the reward tokens per second.

As in Nightjar (Li et al. 2025, arXiv 2512.22420), which learns the best length per batch size by trial, 0 tokens
included, and charges the cost of resuming drafting. Here that cost is in the step times, since a drafter catches up in
its next draft. Nightjar's schedule of trials and its offloading of the draft model are not implemented: a random length
is tried for a few steps, less often the more often a batch size occurred.
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
"""Steps for which a choice is kept: resuming drafting makes the first step more expensive."""
LEAST_TRIALS = 0.02
"""Minimum share of random choices, since the best length changes."""
MEMORY = 64
"""Half-life of the measurements of a length, in steps."""


@dataclass
class _Arm:
    """Measurements of a length at a batch size."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second; infinite before the first trial."""
        return self.tokens / self.seconds if self.seconds else math.inf

    def learn(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (1 / MEMORY)
        self.tokens, self.seconds = kept * self.tokens + tokens, kept * self.seconds + seconds


class _Context:
    """State of a range of batch sizes."""

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
    """Lengths of 0 to ``most`` tokens. Batch sizes with the same bit length share measurements. The choices depend on
    ``seed`` and the times only."""

    def __init__(self, most: int = TOKENS, seed: int = 0) -> None:
        self._most, self._rng = most, random.Random(seed)
        self._contexts: dict[int, _Context] = {}
        self._latest: tuple[_Context, int] | None = None

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
        self._latest = context, tokens
        return tokens

    def learn(self, finished: FinishedStep) -> None:
        # Steps that also read a prompt say little about drafts.
        if finished.requests and not finished.prompt_rows and self._latest is not None:
            context, tokens = self._latest
            emitted = sum(request.step.emitted for request in finished.requests)
            context.arms[tokens].learn(emitted, finished.seconds)
