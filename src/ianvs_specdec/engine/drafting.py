"""Drafts of all requests of a step, those with something in common in the same steps of it."""

from __future__ import annotations

from collections.abc import Sequence

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.contracts import Drafter
from ianvs_specdec.engine.isolation import guarded
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree


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
        _propose(shared)
    return [request for shared in asking.values() for request, _ in shared]


def _propose(requests: list[tuple[Request, int]]) -> None:
    """Ask for drafts of requests whose drafters have the same in common."""
    if len(requests) > 1 and requests[0][0].drafter.batch_key:
        for (request, _), tree in zip(requests, _proposed(requests), strict=True):
            try:
                if isinstance(tree, Exception):
                    raise tree
                request.verify(tree)
            except Exception as error:
                request.fail(error)
        return
    for request, budget in requests:
        guarded(request, request.draft, budget)


def _proposed(requests: list[tuple[Request, int]]) -> Sequence[TokenTree | Exception]:
    """A tree for each request, or what went wrong with it."""
    drafter = type(requests[0][0].drafter)
    try:
        trees = drafter.propose_all([(request.drafter, request.context, budget) for request, budget in requests])
        if len(trees) != len(requests):
            raise UserError(f"{drafter.__name__}.propose_all returned {len(trees)} trees for {len(requests)} requests")
        return trees
    except Exception as error:
        return [error] * len(requests)
