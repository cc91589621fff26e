"""The dataset processor: rows become dicts that carry the answer and the row number along."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.errors import UserError


class DatasetProcessor:
    """Turns each row into ``{"query": question, "gold": answer, "index": i}``, without reordering or dropping any.

    ``slo_ttft`` and ``slo_latency`` (seconds) and ``slo_itl`` (seconds per token) are the service-level objective that
    Goodput is judged by; what is left out is not demanded.
    """

    def __init__(
        self, slo_ttft: float | None = None, slo_itl: float | None = None, slo_latency: float | None = None
    ) -> None:
        limits = {"ttft": slo_ttft, "itl": slo_itl, "latency": slo_latency}
        self.check_hyperparameters({f"slo_{name}": limit for name, limit in limits.items()})
        self.slo = {name: float(limit) for name, limit in limits.items() if limit is not None}

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        for name, limit in hyperparameters.items():
            number = isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit > 0
            if limit is not None and not number:
                raise UserError(f"{name} must be a number above 0 (seconds), not {limit!r}", key=name)

    def __call__(self, dataset: Any) -> Any:
        rows = [
            {"query": question, "gold": answer, "index": index, **({"slo": self.slo} if self.slo else {})}
            for index, (question, answer) in enumerate(zip(dataset.x, dataset.y, strict=True))
        ]
        for row in rows:
            query_of(row["query"], row["gold"], row["index"])
        dataset.x = rows
        return dataset
