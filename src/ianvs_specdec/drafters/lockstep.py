"""Drafts of several requests by one model, in the same steps of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from ianvs_specdec.decoding import TokenTree

Asked = TypeVar("Asked")
Computed = TypeVar("Computed")


def grown(
    step: Callable[[Sequence[Asked]], Sequence[Computed]], growth: Generator[Asked, Computed, TokenTree]
) -> TokenTree:
    """The tree that comes of one draft alone. Raises what it raised."""
    (tree,) = lockstep(step, [growth])
    if isinstance(tree, Exception):
        raise tree
    return tree


def lockstep(
    step: Callable[[Sequence[Asked]], Sequence[Computed]], growths: Sequence[Generator[Asked, Computed, TokenTree]]
) -> list[TokenTree | Exception]:
    """The trees that come of ``growths``, or what one of them raised: a draft in the making yields what its model has
    to compute next, is sent the outcome, and returns the tree. What all of them ask for next is one ``step``."""
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
        for number, computed in zip(numbers, step(parts), strict=True):
            advance(number, computed)
    return [trees[number] for number in range(len(growths))]
