"""RandomRouter: a given share of the queries goes to the cloud, whichever they are."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.common.settings import Share
from ianvs_specdec.common.types import Query
from ianvs_specdec.records.identity import digest
from ianvs_specdec.routing.routers.base import Router


class RandomRouter(Router):
    """``ratio``: share of the queries sent to the cloud. The draw depends on ``seed`` and the query's content alone, so
    a query is decided alike in any order, in any subset and after a restart."""

    def __init__(self, ratio: Share = 0.5, seed: int = 0) -> None:
        self.check_hyperparameters(locals())
        super().__init__(threshold=1.0 - ratio)
        self.seed = seed

    def score(self, query: Query) -> float:
        """Uniform in [0, 1): a ratio of 0 sends nothing and a ratio of 1 everything."""
        return uniform(self.seed, query.to_json())


def uniform(*content: Any) -> float:
    """A number drawn from [0, 1): the same JSON values draw the same one."""
    return int(digest(list(content))[:13], 16) / 16**13
