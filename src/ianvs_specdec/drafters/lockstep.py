"""Drafts of several requests by one model, in the same steps of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from ianvs_specdec.engine import TokenTree

Asked = TypeVar("Asked", contravariant=True)
Computed = TypeVar("Computed", covariant=True)
Returned = TypeVar("Returned")


class Model(Protocol[Asked, Computed]):
    """What computes parts of several sequences in one step."""

    def step(self, parts: Sequence[Asked], /) -> Sequence[Computed]: ...


Growth = Generator[Asked, Computed, TokenTree]
"""A draft in the making: it yields what its model has to compute next, is sent the outcome, and returns the tree."""


def lockstep(model: Model[Asked, Computed], growths: Sequence[Growth[Asked, Computed]]) -> list[TokenTree | Exception]:
    """The tree that comes of each growth, or what it raised; what all of them ask for next is one step of ``model``."""
    trees: dict[int, TokenTree | Exception] = {}
    asked: dict[int, Asked] = {}

    def advance(number: int, computed: Computed | None) -> None:
        try:
            asked[number] = growths[number].send(computed)  # type: ignore[arg-type]  # the first is always None
        except StopIteration as stop:
            trees[number] = stop.value
        except Exception as error:
            trees[number] = error

    for number in range(len(growths)):
        advance(number, None)
    while asked:
        numbers, parts = list(asked), list(asked.values())
        asked.clear()
        for number, computed in zip(numbers, model.step(parts), strict=True):
            advance(number, computed)
    return [trees[number] for number in range(len(growths))]


def alone(model: Model[Asked, Computed], steps: Generator[Asked, Computed, Returned]) -> Returned:
    """What ``steps`` return, each computed by itself."""
    try:
        part = next(steps)
        while True:
            (computed,) = model.step([part])
            part = steps.send(computed)
    except StopIteration as stop:
        result: Returned = stop.value
        return result


def only(trees: Sequence[TokenTree | Exception]) -> TokenTree:
    """The tree of the one request that was drafted for. Raises what it raised."""
    (tree,) = trees
    if isinstance(tree, Exception):
        raise tree
    return tree
