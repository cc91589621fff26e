"""A cost table with which times can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ianvs_specdec.engine.costs import CostTable, Grid

STEP, ROW, TOKEN, PROMPT, PROMPT_ROW, LEVEL = 0.010, 0.001, 1e-6, 0.020, 1e-4, 0.002
"""Seconds per step, additional row, token of context, prompt step, prompt row, drafted token."""


def simple(draft: bool = True, **changes: Any) -> CostTable:
    """A linear table."""
    step = Grid((1, 101), (0, 1000), ((STEP, STEP + 1000 * TOKEN), (STEP + 100 * ROW, STEP + 100 * ROW + 1000 * TOKEN)))
    prompt = Grid((0, 100), (0,), ((PROMPT,), (PROMPT + 100 * PROMPT_ROW,)))
    drafts = Grid((1, 2), (0, 10), ((0.0, 10 * LEVEL), (0.0, 10 * LEVEL))) if draft else None
    return CostTable(
        step, prompt, drafts, **{"machine": "a stated one", "emulated": True, "prompt_rows": 64, **changes}
    )


def written(folder: Path, table: CostTable) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps(table.to_json()))
    return path
