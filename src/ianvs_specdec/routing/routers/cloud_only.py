"""CloudOnly: every query goes to the cloud."""

from __future__ import annotations

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Router


class CloudOnly(Router):
    def __init__(self) -> None:
        super().__init__()

    def score(self, query: Query) -> float:
        return 1.0
