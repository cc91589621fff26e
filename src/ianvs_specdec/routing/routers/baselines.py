"""Routers that do not depend on the query: EdgeOnly, CloudOnly and RandomRouter."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.common.settings import Share
from ianvs_specdec.common.types import Query
from ianvs_specdec.records.identity import digest
from ianvs_specdec.routing.routers.base import Router


class EdgeOnly(Router):
    def __init__(self) -> None:
        super().__init__()

    def score(self, query: Query) -> float:
        return 0.0


class CloudOnly(Router):
    def __init__(self) -> None:
        super().__init__()

    def score(self, query: Query) -> float:
        return 1.0


class RandomRouter(Router):
    """``ratio``: share of the queries sent to the cloud. A decision depends on ``seed`` and the query only."""

    def __init__(self, ratio: Share = 0.5, seed: int = 0) -> None:
        self.check_hyperparameters(locals())
        super().__init__(threshold=1.0 - ratio)
        self.seed = seed

    def score(self, query: Query) -> float:
        """Uniform in [0, 1): a ratio of 0 sends nothing and a ratio of 1 everything."""
        return uniform(self.seed, query.to_json())


def uniform(*content: Any) -> float:
    """A pseudorandom number in [0, 1), determined by JSON values."""
    return int(digest(list(content))[:13], 16) / 16**13
