"""Drafts of several requests by one model, in the same steps of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from ianvs_specdec.engine import TokenTree

Part = TypeVar("Part", contravariant=True)
Result = TypeVar("Result", covariant=True)
Value = TypeVar("Value")


class Model(Protocol[Part, Result]):
    """Computes parts of several sequences in one step."""

    def step(self, parts: Sequence[Part], /) -> Sequence[Result]: ...


Growth = Generator[Part, Result, TokenTree]
"""A draft as a generator: it yields the next part for its model, receives the result, and returns the tree."""


def lockstep(model: Model[Part, Result], growths: Sequence[Growth[Part, Result]]) -> list[TokenTree | Exception]:
    """Run all growths; parts that they yield at the same time share a step of ``model``. Returns a tree or an exception
    for each."""
    trees: dict[int, TokenTree | Exception] = {}
    waiting: dict[int, Part] = {}

    def advance(number: int, result: Result | None) -> None:
        try:
            waiting[number] = growths[number].send(result)  # type: ignore[arg-type]  # the first is always None
        except StopIteration as stop:
            trees[number] = stop.value
        except Exception as error:
            trees[number] = error

    for number in range(len(growths)):
        advance(number, None)
    while waiting:
        numbers, parts = list(waiting), list(waiting.values())
        waiting.clear()
        for number, result in zip(numbers, model.step(parts), strict=True):
            advance(number, result)
    return [trees[number] for number in range(len(growths))]


def run_alone(model: Model[Part, Result], steps: Generator[Part, Result, Value]) -> Value:
    """Run ``steps`` with one step of ``model`` per part. Returns their result."""
    try:
        part = next(steps)
        while True:
            (result,) = model.step([part])
            part = steps.send(result)
    except StopIteration as stop:
        value: Value = stop.value
        return value
