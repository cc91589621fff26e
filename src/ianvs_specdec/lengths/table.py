"""Draft tokens by the number of running requests, from the tables of vLLM and TensorRT-LLM."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ianvs_specdec.lengths.uniform import TOKENS, Uniform, whole

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import Load

ALL, NEW = "all", "new"
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
        """A list is vLLM's ``num_speculative_tokens_per_batch_size`` (PR 32374), whose last entry also applies beyond
        its range. A mapping is TensorRT-LLM's ``draft_len_schedule`` (PR 10860), beyond which nothing is drafted.

        vLLM fills gaps with the range before them; here a gap is an error, since the table does not show that.
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


class Queue(Table):
    """``tokens`` draft tokens while at most ``most`` requests run, else none: the first milestone of vLLM's RFC 4565.
    With ``new``, each request keeps the decision of its first step."""

    def __init__(self, most: int, tokens: int = TOKENS, *, new: bool = False) -> None:
        super().__init__([most], [tokens], beyond=0)
        self._new = new

    @classmethod
    def from_argument(cls, argument: str) -> Queue:
        most, _, rest = argument.partition(":")
        whom, _, tokens = rest.partition(":")
        try:
            if whom not in ("", ALL, NEW):
                raise ValueError(f"{whom!r} is neither {ALL} nor {NEW}")
            return cls(whole(most), whole(tokens, least=1) if tokens else TOKENS, new=whom == NEW)
        except ValueError as error:
            usage = "write queue:N, queue:N:new or queue:N:all:K: off above N running requests, else K draft tokens"
            raise ValueError(f"{error}; {usage}, for example queue:8:all:5") from error

    def budgets(self, load: Load) -> Sequence[int]:
        if not self._new:
            return super().budgets(load)
        for stats in load.running:
            if stats.length_state is None:
                stats.length_state = self.budget(load)
        return [stats.length_state for stats in load.running]


def _schedule(given: dict[Any, Any]) -> tuple[list[int], list[int]]:
    # JSON keys are texts.
    pairs = [(int(key) if isinstance(key, str) and key.isdecimal() else key, tokens) for key, tokens in given.items()]
    if not pairs:
        raise ValueError("the table is empty")
    for end, tokens in pairs:
        _check(end, least=1)
        _check(tokens, least=0)
    ends = sorted({end for end, _ in pairs})
    if len(ends) < len(pairs):
        raise ValueError("a number of running requests occurs twice")
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
            fault = "overlaps another range" if first <= end else f"leaves a gap after {end}"
            raise ValueError(f"{[first, last, tokens]} {fault}")
        end = last
    return [last for _, last, _ in ranges], [tokens for _, _, tokens in ranges]


def _check(number: Any, least: int) -> None:
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r} is not a whole number of at least {least}")
