"""RandomRouter: a given share of the queries goes to the cloud, whichever they are."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import digest
from ianvs_specdec.routers.base import Router, number
from ianvs_specdec.types import Query


class RandomRouter(Router):
    """``ratio``: share of the queries sent to the cloud. The draw depends on ``seed`` and the query's content alone, so
    a query is decided alike in any order, in any subset and after a restart."""

    def __init__(self, ratio: float = 0.5, seed: int = 0) -> None:
        super().__init__(threshold=1.0 - number("ratio", ratio, low=0.0, high=1.0))
        self.seed = seed

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        number("ratio", hyperparameters.get("ratio", 0.5), low=0.0, high=1.0)
        seed = hyperparameters.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UserError(f"seed must be a whole number, not {seed!r}", key="seed")

    def score(self, query: Query) -> float:
        """Uniform in [0, 1): a ratio of 0 sends nothing and a ratio of 1 everything."""
        return int(digest([self.seed, query.to_json()])[:13], 16) / 16**13
