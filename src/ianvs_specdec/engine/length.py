"""The interface of speculation lengths: called before and after every step, for all requests that share it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ianvs_specdec.common.types import Step


@dataclass(eq=False, slots=True)
class Stats:
    """One request under way; the engine keeps it current, and a new request comes with a new instance.

    ``context_tokens`` are its prompt and output so far, ``task`` names its kind, and at most ``remaining`` more tokens
    will be emitted. ``unread_tokens`` have to be read by its drafter before it can draft. ``length_state`` belongs to
    the length.
    """

    context_tokens: int
    task: str = ""
    remaining: int = sys.maxsize
    unread_tokens: int = 0
    length_state: Any = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the next step is for: the requests ``running``, whose drafts it verifies, and ``prompt_rows`` tokens of
    prompts of others. ``waiting`` requests have no room yet. ``reading`` ones have room, and have not read their
    prompts yet; of these, ``unread`` ones have more to read than the next step reads."""

    running: Sequence[Stats]
    waiting: int = 0
    prompt_rows: int = 0
    unread: int = 0
    reading: int = 0

    @property
    def context_tokens(self) -> int:
        return sum([stats.context_tokens for stats in self.running])


@dataclass(slots=True)
class RequestStep:
    """One request's part in a finished step: the budget it was given, the ``unread_tokens`` of its drafter, how
    deep its tree was (scouts aside), and what came of it. ``over``: its output ended there, so that what was accepted
    says little about its draft."""

    stats: Stats
    budget: int
    unread_tokens: int
    depth: int
    step: Step
    over: bool = False


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A finished step. Seconds are those of the whole: ``draft_seconds`` of proposing and observing, ``verify_seconds``
    of computing, accepting and committing. ``other_seconds`` are all others since the step before, if this one followed
    at once, such as putting out tokens. What the length itself takes, to choose and to learn, is in no step's time.
    ``rows`` are the tokens of trees
    that the step computed, ``context`` is the number of tokens that the sequences of the ``requests`` held."""

    requests: Sequence[RequestStep]
    rows: int
    prompt_rows: int
    context: int
    draft_seconds: float
    verify_seconds: float
    other_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.other_seconds


class Length(Protocol):
    """A speculation length. One instance serves all requests of an engine."""

    @property
    def confidence(self) -> float:
        """See ``Context.confidence``; 0 = no limit."""

    def budgets(self, load: Load) -> Sequence[int]:
        """For each running request the most draft tokens that the next step may verify; 0 = do not speculate."""

    def learn(self, finished: FinishedStep) -> None:
        """Called after every step."""
