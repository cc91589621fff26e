"""OracleRouter: the upper bound of routers, by the answers of both models."""

from __future__ import annotations

from typing import Any, ClassVar

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.workspace.scoring import scorer


class OracleRouter(Router):
    """Sends a query to the cloud if the cloud's answer has a higher score. Queries without a score stay on the edge.

    Answers come from the journal, so each model answers a query at most once. The router's time is not recorded.
    """

    timed: ClassVar[bool] = False
    concurrent: ClassVar[bool] = True

    def __init__(self, edgemodel: Any = None, cloudmodel: Any = None) -> None:
        super().__init__()
        self.edgemodel, self.cloudmodel = edgemodel, cloudmodel

    def score(self, query: Query) -> float:
        raise UserError("OracleRouter needs the row with its answer, not the query alone")

    def score_row(self, data: Any) -> float:
        data = row_of(data)
        if not isinstance(data, dict) or "gold" not in data:
            raise UserError("OracleRouter needs rows with answers: add the module dataset_processor to the algorithm")
        if self.edgemodel is None or self.cloudmodel is None:
            raise UserError("OracleRouter needs both models: its module must be named OracleRouter")
        judge = scorer(query_of_row(data).scorer)
        responses = (self.edgemodel.predict(data), self.cloudmodel.inference(data))
        edge, cloud = (judge([turn["completion"] for turn in one["turns"]], data["gold"]) for one in responses)
        return 1.0 if edge is not None and cloud is not None and cloud > edge else 0.0
