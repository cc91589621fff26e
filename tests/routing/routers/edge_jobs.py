"""A job on one tiny model for both sides, in which the router calls the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.routing.routers import build_router
from sedna.core.joint_inference import JointInference

SETTINGS = {"backend": "autoregressive", "dtype": "float32", "max_tokens": 8}
ROWS = [{"query": f"question {index}", "gold": "B", "index": index} for index in range(2)]


def run(model: Path, router: Any, rows: list[dict[str, Any]] = ROWS, **edge: Any) -> list[Any]:
    given = {"model": str(model), **SETTINGS, "price_prompt": 3.0, "price_completion": 5.0, **edge}
    # With another seed the cloud does not reuse the edge's answers.
    edge_model, cloud = EdgeModel(**given), CloudModel(model=str(model), **SETTINGS, price_completion=1.0, seed=9)
    job = JointInference(edge_model, cloud)
    job.hard_example_mining_algorithm = build_router(router)
    rows = [dict(row) for row in rows]
    try:
        found = [job.inference(row, mining_mode="mining-then-inference") for row in rows]
        occupied = None if edge_model._llm is None else edge_model._llm.occupancy()
        assert occupied is None or (occupied.sequences, occupied.waiting) == (0, 0)
    finally:
        edge_model.cleanup()
        cloud.cleanup()
    assert not any("edge_prefill" in row for row in rows)
    return found
