"""A method of ours on a target, opened once and asked by several requests at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ianvs_specdec.engine.contracts import Drafter, Target
    from ianvs_specdec.engine.request import Request


@dataclass(frozen=True)
class Opened:
    """``drafter`` is prepared for ``target``; answers are greedy and end at ``eos_ids`` or after ``max_tokens``."""

    target: Target
    drafter: Drafter
    eos_ids: Sequence[int]
    max_tokens: int

    @classmethod
    def of(
        cls, target: Target, method: str, settings: Mapping[str, Any], eos_ids: Sequence[int], max_tokens: int
    ) -> Opened:
        """``settings`` are the options of the ``method``."""
        from ianvs_specdec import drafters

        drafter = drafters.create(method, settings)
        drafter.prepare(target)
        return cls(target, drafter, eos_ids, max_tokens)

    def request(self, ids: Sequence[int], **options: Any) -> Request:
        """A request of the prompt ``ids``, for an engine over ``target``; ``options`` are those of ``Request``."""
        from ianvs_specdec.common.types import Sampling
        from ianvs_specdec.engine.request import Request

        sampling = Sampling(max_tokens=self.max_tokens)
        return Request(self.target, self.drafter.fork(), ids, sampling, eos_ids=self.eos_ids, **options)
