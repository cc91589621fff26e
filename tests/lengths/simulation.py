"""A clock that is only counted: drafters, targets and requests as numbers, so that lengths can be judged exactly.

Times are milliseconds. Whether a guess at an output position is right is drawn once per request and position, so every
length meets the same luck.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from ianvs_specdec.common.types import Step
from ianvs_specdec.engine import FinishedStep, Load, RequestStep, Stats

GRID = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60)


def interpolated(table: dict[int, float]) -> Callable[[int], float]:
    knots = sorted(table.items())

    @cache
    def at(tokens: int) -> float:
        for (x0, y0), (x1, y1) in pairwise(knots):
            if tokens <= x1 or x1 == knots[-1][0]:
                return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
        raise AssertionError

    return at


@dataclass(frozen=True)
class Machine:
    """``verify`` maps tokens to time, ``call`` and ``level`` are a draft's cost, in all and per level; ``drift`` is how
    much a step slows down per token of context. ``slow`` times as long as it says all takes in every other phase of
    ``PHASE`` steps, as on a machine that is shared: a length sees it, what it is judged by leaves it out."""

    verify: Callable[[int], float]
    call: float = 0.0
    level: float = 0.0
    drift: float = 0.0
    noise: float = 0.03
    outliers: float = 0.01
    slow: float = 1.0


PHASE = 60
"""Steps on average."""


@dataclass(frozen=True)
class Chain:
    """Guesses one token per level; finds something to guess with probability ``hits``."""

    hits: float = 1.0

    def shape(self, budget: int) -> tuple[int, int]:
        return budget, budget

    def accepted(self, ranks: list[int], budget: int) -> int:
        return next((i for i, rank in enumerate(ranks[:budget]) if rank), min(budget, len(ranks)))


@dataclass(frozen=True)
class Tree:
    """The likeliest nodes of a tree, up to ``depth`` levels, for a drafter that expects ``expected`` of its first
    guesses to be right."""

    depth: int = 8
    expected: float = 0.75
    hits: float = 1.0

    def shape(self, budget: int) -> tuple[int, int]:
        paths = tree_paths(self.depth, self.expected)
        size = min(budget, len(paths))
        return size, max(len(path) for path, index in paths.items() if index < size)

    def accepted(self, ranks: list[int], budget: int) -> int:
        paths, path = tree_paths(self.depth, self.expected), ()
        for rank in ranks[: self.depth]:
            path = (*path, rank)
            if paths.get(path, budget) >= budget:
                return len(path) - 1
        return len(path)


def rank_probabilities(right: float) -> list[float]:
    """How likely the target's token is the drafter's first, second, ... guess."""
    spread = min(0.45, (1 - right) / 1.5)
    return [right * spread**rank for rank in range(6)]


@cache
def tree_paths(depth: int, expected: float) -> dict[tuple[int, ...], int]:
    """Paths of ranks in order of their probability."""
    likely = rank_probabilities(expected)
    heap: list[tuple[float, tuple[int, ...]]] = [(-p, (rank,)) for rank, p in enumerate(likely)]
    heapq.heapify(heap)
    order: dict[tuple[int, ...], int] = {}
    while len(order) < 100:
        score, path = heapq.heappop(heap)
        order[path] = len(order)
        if len(path) < depth:
            for rank, p in enumerate(likely):
                heapq.heappush(heap, (score * p, (*path, rank)))
    return order


@dataclass(frozen=True)
class Request:
    task: str
    kind: str
    right: float
    prompt: int
    tokens: int
    seed: int
    ranks: list[int] = field(default_factory=list, compare=False)
    found: list[bool] = field(default_factory=list, compare=False)


def request(kind: str, right: float, prompt: int, tokens: int, seed: int, named: bool, hits: float) -> Request:
    rng = random.Random(seed)
    likely = rank_probabilities(right)
    ranks = []
    for _ in range(tokens):
        draw = rng.random()
        for rank, p in enumerate(likely):  # noqa: B007 - used after the loop
            draw -= p
            if draw < 0:
                break
        ranks.append(rank if draw < 0 else len(likely))
    found = [rng.random() < hits for _ in range(tokens)]
    return Request(kind if named else "", kind, right, prompt, tokens, seed, ranks, found)


def mix(
    tasks: dict[str, float],
    *,
    requests: int = 30,
    named: bool = True,
    seed: int = 0,
    hits: float = 1.0,
    prompts: tuple[int, int] = (50, 250),
    tokens: tuple[int, int] = (20, 128),
) -> list[Request]:
    """Interleaved requests of several tasks; a task's figure is how often the drafter's first guess is right."""
    rng = random.Random(seed)
    kinds = [kind for kind in tasks for _ in range(requests // len(tasks))]
    rng.shuffle(kinds)
    return [
        request(kind, tasks[kind], rng.randint(*prompts), rng.randint(*tokens), 1000 * seed + i, named, hits)
        for i, kind in enumerate(kinds)
    ]


def run(
    length, machine: Machine, drafter, requests: list[Request], seed: int = 0, at_once: int = 1, watch=None
) -> dict[str, float]:
    """Milliseconds per kind of request, of which ``at_once`` are under way and share their steps: each has an equal
    part of a step's time. ``watch`` is told of every step: requests, budgets, milliseconds, tokens."""
    rng = Luck(seed)
    spent: dict[str, float] = {}
    waiting, running = deque(requests), list[Running]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(Running(waiting.popleft()))
        taken, budgets, tokens = step(length, machine, drafter, running, rng)
        for one in running:
            spent[one.asked.kind] = spent.get(one.asked.kind, 0.0) + taken / len(running)
        if watch is not None:
            watch([one.asked for one in running], budgets, taken, tokens)
        running = [one for one in running if one.done < one.asked.tokens]
    return spent


class Luck(random.Random):
    """Of the times of steps; ``slow`` while the machine is in a slow phase."""

    slow = False

    def factor(self, machine: Machine) -> float:
        """How much longer a length sees the next step take than it is judged by."""
        self.slow ^= machine.slow > 1 and self.random() < 1 / PHASE
        return (10 if self.random() < machine.outliers else 1) * (machine.slow if self.slow else 1)


class Running:
    def __init__(self, asked: Request) -> None:
        self.asked, self.done = asked, 1
        self.stats = Stats(asked.prompt + 1, asked.task, asked.tokens - 1)


def step(length, machine: Machine, drafter, running: list[Running], rng: Luck) -> tuple[float, list[int], int]:
    """Milliseconds, budgets and emitted tokens of a step that all share."""
    budgets = list(length.budgets(Load([one.stats for one in running])))
    context = sum(one.stats.context_tokens for one in running)
    requests, draft, deepest = [], 0.0, 0
    for one, budget in zip(running, budgets, strict=True):
        size = depth = accepted = 0
        if budget > 0:
            draft += machine.call
            if one.asked.found[one.done]:
                size, depth = drafter.shape(budget)
                accepted = drafter.accepted(one.asked.ranks[one.done : one.done + 100], budget)
                deepest = max(deepest, depth)
        emitted = min(accepted + 1, one.asked.tokens - one.done)
        one.done += emitted
        one.stats.context_tokens += emitted
        one.stats.remaining -= emitted
        done = Step(size, accepted, emitted, size + 1)
        requests.append(RequestStep(one.stats, budget, 0, depth, done, one.done >= one.asked.tokens))
    draft += machine.level * deepest
    rows = sum(request.step.verified for request in requests)
    verify = machine.verify(rows) * (1 + machine.drift * context)
    verify *= rng.lognormvariate(0, machine.noise)
    late = rng.factor(machine)
    length.learn(FinishedStep(requests, rows, 0, context, late * draft / 1000, late * verify / 1000))
    return draft + verify, budgets, sum(request.step.emitted for request in requests)
