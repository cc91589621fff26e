"""A target and requests for the engine that only count tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ianvs_specdec.common.types import Step
from ianvs_specdec.engine.contracts import Drafter, StepInput
from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.engine.length import RequestStep
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.lengths.oracle import Replayed


@dataclass
class VirtualClock:
    """Time that passes only in ``until``."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def until(self, moment: float) -> None:
        self.time = moment


@dataclass(frozen=True, slots=True)
class UserRequest:
    """A request with ``output`` tokens (maximum: ``most``). Each token has a number from 0 to 1 in ``draws``: at depth
    l of a draft it is accepted if the number is below ``survival[l - 1]``. ``found``: tokens at which the drafter finds
    a draft, None = all."""

    task: str
    prompt: int
    output: int
    most: int
    survival: Sequence[float] = ()
    draws: Sequence[float] = ()
    found: Sequence[bool] | None = None


class SimulatedAnswer(NamedTuple):
    """A finished request; ``delay``: one-way network delay in seconds."""

    task: str
    arrived: float
    delay: float
    first: float
    last: float
    tokens: int
    drafted: int
    accepted: int
    steps: int


@dataclass
class EmittedTokens:
    """Number of emitted tokens of all requests."""

    emitted: int = 0


@cache
def _chain(nodes: int) -> TokenTree:
    """A chain of ``nodes`` tokens; the ids do not matter."""
    return TokenTree.chain(0, [0] * nodes)


@cache
def _step(drafted: int, accepted: int, emitted: int) -> Step:
    return Step(drafted, accepted, emitted, drafted + 1)


_PLAIN, _ROOT = _step(0, 0, 1), _chain(0)


class SimulatedTarget:
    """The methods that the engine uses. Its time is emulated (``backends.emulation``)."""

    def __init__(self, costs: CostTable) -> None:
        self.costs, self.prompt_rows = costs, costs.prompt_rows

    def memory(self, positions: int) -> int:
        return 0

    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[None]:
        return [None] * len(parts)


class SimulatedRequest(Request):
    """A request without tokens. Its drafts are chains of the maximum length."""

    stats: Replayed
    step_input: Any
    opened = decoding = ended = False
    drafter = Drafter()
    """Drafts are always ready."""
    drafted = 0
    finds = True
    """Whether the drafter finds a draft for the next step."""

    def __init__(
        self,
        target: SimulatedTarget,
        asked: UserRequest,
        arrived: float,
        delay: float,
        clock: VirtualClock,
        tally: EmittedTokens,
    ) -> None:
        costs = target.costs
        self.asked, self.arrived, self.delay = asked, arrived, delay
        self.answered: Any = None
        """Event for its end."""
        self._target: Any = target
        self.first = self.last = float("nan")
        """Times of the first and the last token."""
        self.done = self.drafted_tokens = self.accepted_tokens = self.steps = 0
        self.error = None
        self.stats = Replayed(asked.prompt, asked.task, asked.most, coming=self.coming)
        self._catches_up = costs.catch_up > 0
        self._most = costs.largest_draft
        self._clock, self._tally = clock, tally
        self.sequence: Any = None

    def end_if_cancelled(self) -> bool:
        return self.ended

    # Without effect in a simulation:
    def add_draft_seconds(self, seconds: float) -> None: ...
    def warm_up(self) -> None: ...
    def close(self) -> None: ...
    def update_unread(self) -> None: ...
    def commit(self) -> None: ...
    def observe(self) -> None: ...

    def answer(self) -> SimulatedAnswer:
        """The finished request, without its long ``draws``."""
        times = self.arrived, self.delay, self.first, self.last
        return SimulatedAnswer(
            self.asked.task, *times, self.done, self.drafted_tokens, self.accepted_tokens, self.steps
        )

    def open(self) -> None:
        self.opened = True
        self.unread: Any = range(self.asked.prompt)
        if self._catches_up:
            self.stats.unread_tokens = self.asked.prompt

    def set_budget(self, budget: int, confidence: float) -> None:
        self._budget, self._behind = budget, self.stats.unread_tokens

    def skip_draft(self) -> None:
        self.step_input, self.drafted = _ROOT, 0

    def draft(self, budget: int) -> None:
        nodes = min(budget, self._most, self.stats.remaining - 1) if self.finds else 0
        self.step_input, self.drafted = _chain(nodes) if nodes else _ROOT, nodes

    def accept(self, output: Any) -> None:
        if not self.decoding and self.step_input.last:
            self.decoding = True
            self._emit_tokens(1)

    def emit(self) -> RequestStep:
        drafted, step = self.drafted, _PLAIN
        if self._budget > 0:
            # The drafter has read them.
            self.stats.unread_tokens = 0
        if drafted:
            right, left = self.coming(drafted), self.asked.output - self.done
            step = _step(drafted, right, right + 1) if right < left else _step(drafted, left, left)
            self.drafted_tokens += drafted
            self.accepted_tokens += step.accepted
        self._emit_tokens(step.emitted)
        self.steps += 1
        return RequestStep(self.stats, self._budget, self._behind, drafted, step, self.ended)

    def coming(self, most: int) -> int:
        """How many of ``most`` draft tokens the next step would accept."""
        if not self.finds:
            return 0
        asked, position = self.asked, self.done
        level = 0
        # Ends at the last token of the output.
        for drawn, survival in zip(asked.draws[position : position + most], asked.survival, strict=False):
            if drawn >= survival:
                break
            level += 1
        return level

    def _emit_tokens(self, tokens: int) -> None:
        stats = self.stats
        self.last = self._clock.time
        if not self.done:
            self.first = self.last
        self.done = done = self.done + tokens
        self._tally.emitted += tokens
        stats.context_tokens += tokens
        stats.remaining -= tokens
        if self._catches_up:
            stats.unread_tokens += tokens
        asked = self.asked
        if done == asked.output:
            self.ended = True
        elif asked.found is not None:
            self.finds = asked.found[done]
