"""Draft tokens by the number of running requests, from a table as vLLM and TensorRT-LLM have it in their settings."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ianvs_specdec.lengths.uniform import Uniform

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import Load

USAGE = (
    "write vLLM's table:[[1,16,5],[17,64,2]], first and last number of running requests and draft tokens, from 1 on "
    "and without gaps, or TensorRT-LLM's table:{4: 4, 8: 2, 32: 1}, running requests at most and draft tokens"
)


class Table(Uniform):
    """``tokens[i]`` for up to ``ends[i]`` running requests, ``beyond`` for more than the last of them."""

    def __init__(self, ends: Sequence[int], tokens: Sequence[int], beyond: int) -> None:
        self._ends, self._tokens = ends, [*tokens, beyond]

    @classmethod
    def from_argument(cls, argument: str) -> Table:
        """A list is vLLM's ``num_speculative_tokens_per_batch_size`` (PR 32374): beyond its last range, that range's
        tokens go on. A mapping is TensorRT-LLM's ``draft_len_schedule`` (PR 10860): beyond it, nothing is drafted.

        Where vLLM's table has a gap, vLLM goes on with the range before it; here a gap is refused, since who reads the
        table does not see that.
        """
        try:
            given = ast.literal_eval(argument.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"this is neither a list nor a mapping; {USAGE}") from None
        try:
            if isinstance(given, dict):
                return cls(*_schedule(given), beyond=0)
            ends, tokens = _ranges(given)
            return cls(ends, tokens, beyond=tokens[-1])
        except ValueError as error:
            raise ValueError(f"{error}; {USAGE}") from error

    def budget(self, load: Load) -> int:
        return self._tokens[bisect_left(self._ends, len(load.running))]


def _schedule(given: dict[Any, Any]) -> tuple[list[int], list[int]]:
    # In JSON, keys are texts.
    pairs = [(int(key) if isinstance(key, str) and key.isdecimal() else key, tokens) for key, tokens in given.items()]
    if not pairs:
        raise ValueError("the table is empty")
    for end, tokens in pairs:
        _check(end, least=1)
        _check(tokens, least=0)
    ends = sorted({end for end, _ in pairs})
    if len(ends) < len(pairs):
        raise ValueError("a number of running requests stands there twice")
    return ends, [dict(pairs)[end] for end in ends]


def _ranges(given: Any) -> tuple[list[int], list[int]]:
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError("the table is empty" if given in ([], ()) else f"{given!r} is neither a list nor a mapping")
    for row in given:
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError(f"{row!r} is not [first, last, tokens]")
        first, last, tokens = row
        _check(first, least=1)
        _check(last, least=first)
        _check(tokens, least=0)
    end, ranges = 0, sorted(map(tuple, given))
    for first, last, tokens in ranges:
        if first != end + 1:
            fault = "overlaps another range" if first <= end else f"leaves a gap behind {end}"
            raise ValueError(f"{[first, last, tokens]} {fault}")
        end = last
    return [last for _, last, _ in ranges], [tokens for _, _, tokens in ranges]


def _check(number: Any, least: int) -> None:
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r} is not a whole number of at least {least}")
