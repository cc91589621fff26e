"""The requests of one step of the engine: what is computed for them, and their drafts. One that fails ends alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.contracts import Drafter, Output
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.scheduling import Share
from ianvs_specdec.engine.tree import TokenTree

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Batch:
    """The requests that take part: of those ``reading`` a piece of the prompt is computed, of those ``decoding`` a tree
    is verified.

    ``budgets`` are those of the decoding ones, of which those ``asked`` have drafts that were made here. ``rows``,
    ``prompt_rows`` and ``context`` are as in ``Finished``. ``outputs`` are the target's, none where it failed.
    """

    reading: list[Request]
    decoding: list[Request]
    prompt_rows: int = 0
    budgets: Sequence[int] = field(default=(), init=False)
    asked: Sequence[Request] = field(default=(), init=False)
    rows: int = field(default=0, init=False)
    context: int = field(default=0, init=False)
    outputs: Sequence[Output] = field(default=(), init=False)
    shares: Sequence[Share] = field(default=(), init=False)


def guarded(request: Request, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Result of ``function``; an exception ends only ``request``."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        request.fail(error)
        return None


def draft(requests: Sequence[Request], budgets: Sequence[int], confidence: float) -> list[Request]:
    """Have each request propose a tree, where its budget is above 0; else its next step computes the root alone.
    Returns who was asked for one."""
    asking: dict[tuple[type[Drafter], int], list[tuple[Request, int]]] = {}
    for request, budget in zip(requests, budgets, strict=True):
        request.ask(budget, confidence)
        if budget > 0:
            drafter = request.drafter
            asking.setdefault((type(drafter), id(drafter.batch_key)), []).append((request, budget))
        else:
            request.skip_draft()
    for shared in asking.values():
        if len(shared) > 1 and shared[0][0].drafter.batch_key:
            for (request, _), tree in zip(shared, _proposed(shared), strict=True):
                if isinstance(tree, Exception):
                    request.fail(tree)
                else:
                    guarded(request, request.set_tree, tree)
        else:
            for request, budget in shared:
                guarded(request, request.draft, budget)
    return [request for shared in asking.values() for request, _ in shared]


def _proposed(requests: list[tuple[Request, int]]) -> Sequence[TokenTree | Exception]:
    """A tree for each request, or what went wrong with it, from drafters that have the same in common."""
    drafter = type(requests[0][0].drafter)
    try:
        trees = drafter.propose_all([(request.drafter, request.context, budget) for request, budget in requests])
        if len(trees) != len(requests):
            raise UserError(f"{drafter.__name__}.propose_all returned {len(trees)} trees for {len(requests)} requests")
        return trees
    except Exception as error:
        return [error] * len(requests)
