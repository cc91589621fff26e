"""Drafts of several requests by one model, in the same steps of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from ianvs_specdec.engine import TokenTree

Asked = TypeVar("Asked", contravariant=True)
Computed = TypeVar("Computed", covariant=True)
Returned = TypeVar("Returned")


class Model(Protocol[Asked, Computed]):
    """Computes parts of several sequences in one step."""

    def step(self, parts: Sequence[Asked], /) -> Sequence[Computed]: ...


Growth = Generator[Asked, Computed, TokenTree]
"""A draft as a generator: it yields the next part for its model, receives the result, and returns the tree."""


def lockstep(model: Model[Asked, Computed], growths: Sequence[Growth[Asked, Computed]]) -> list[TokenTree | Exception]:
    """Run all growths; parts that they yield at the same time share a step of ``model``. Returns a tree or an exception
    for each."""
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


def run_alone(model: Model[Asked, Computed], steps: Generator[Asked, Computed, Returned]) -> Returned:
    """Run ``steps`` with one step of ``model`` per part. Returns their result."""
    try:
        part = next(steps)
        while True:
            (computed,) = model.step([part])
            part = steps.send(computed)
    except StopIteration as stop:
        result: Returned = stop.value
        return result
