"""CloudOnly: every query goes to the cloud."""

from __future__ import annotations

from ianvs_specdec.routers.base import Router
from ianvs_specdec.types import Query


class CloudOnly(Router):
    def __init__(self) -> None:
        super().__init__()

    def score(self, query: Query) -> float:
        return 1.0
