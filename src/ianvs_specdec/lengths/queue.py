"""Off while more than N requests run: the first milestone of "Automate Speculative Decoding" (vLLM's RFC 4565)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ianvs_specdec.lengths.uniform import TOKENS, Uniform, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ianvs_specdec.engine.length import Load

ALL, NEW = "all", "new"


class Queue(Uniform):
    """``tokens`` draft tokens for each request while at most ``most`` run, else none. With ``new`` that is decided at a
    request's first step and holds to its end: who came when there was room keeps its drafts."""

    def __init__(self, most: int, tokens: int = TOKENS, *, new: bool = False) -> None:
        self._most, self._tokens, self._new = most, tokens, new

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

    def budget(self, load: Load) -> int:
        return self._tokens if len(load.running) <= self._most else 0

    def budgets(self, load: Load) -> Sequence[int]:
        if not self._new:
            return super().budgets(load)
        for stats in load.running:
            if stats.length_state is None:
                stats.length_state = self.budget(load)
        return [stats.length_state for stats in load.running]
