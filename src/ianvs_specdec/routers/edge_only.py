"""EdgeOnly: no query goes to the cloud."""

from __future__ import annotations

from ianvs_specdec.routers.base import Router
from ianvs_specdec.types import Query


class EdgeOnly(Router):
    def __init__(self) -> None:
        super().__init__()

    def score(self, query: Query) -> float:
        return 0.0
