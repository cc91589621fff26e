"""The interface of speculation lengths, which the engine calls before and after every step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ianvs_specdec.common.types import Step


@dataclass(eq=False, slots=True)
class Stats:
    """A running request, updated by the engine. ``task`` is its kind, ``remaining`` the maximum number of tokens still
    to emit, ``unread_tokens`` what its drafter must read before it can draft. ``length_state`` belongs to the
    length."""

    context_tokens: int
    task: str = ""
    remaining: int = sys.maxsize
    unread_tokens: int = 0
    length_state: Any = None


@dataclass(frozen=True, slots=True)
class Load:
    """The work of the next step: ``running`` requests that decode and ``prompt_rows`` prompt tokens. ``waiting``
    requests lack memory. ``reading`` requests read their prompts; ``unread`` of them need more than this step."""

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
    """One request's part of a finished step: its budget, the ``unread_tokens`` of its drafter, the depth of its tree
    (without scouts), and the result. ``over``: the output ended in this step, so that the number of accepted tokens
    says little about the draft."""

    stats: Stats
    budget: int
    unread_tokens: int
    depth: int
    step: Step
    over: bool = False


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A finished step and its times in seconds: ``draft_seconds`` of proposing and observing, ``verify_seconds`` of
    computing, accepting and committing, ``other_seconds`` since the previous step if this one followed immediately. The
    time of the length itself is not included. ``rows`` are the computed tree tokens, ``context`` the cached tokens of
    the ``requests``."""

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
        """The maximum number of draft tokens of each running request in the next step; 0 = no speculation."""

    def learn(self, finished: FinishedStep) -> None:
        """Called after every step."""
