"""Drafts of several requests by one model, in the same steps of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ianvs_specdec.decoding import Output, Target, TokenTree
from ianvs_specdec.decoding.contracts import Piece, SequenceState

Growth = Generator[tuple[SequenceState, Piece], Output, TokenTree]
"""A draft in the making: it yields what the model has to compute next, is sent the outcome, and returns the tree."""


def lockstep(model: Target, growths: Sequence[Growth]) -> list[TokenTree]:
    """The trees that come of ``growths``; what all of them ask for next is one step of ``model``."""
    trees: dict[int, TokenTree] = {}
    asked: dict[int, tuple[SequenceState, Piece]] = {}

    def advance(number: int, output: Output | None) -> None:
        try:
            asked[number] = growths[number].send(output)  # type: ignore[arg-type]  # the first is always None
        except StopIteration as stop:
            trees[number] = stop.value

    for number in range(len(growths)):
        advance(number, None)
    while asked:
        numbers, parts = list(asked), list(asked.values())
        asked.clear()
        for number, output in zip(numbers, model.step(parts), strict=True):
            advance(number, output)
    return [trees[number] for number in range(len(growths))]
