"""What the times of a test case were taken with."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.plugin.workspace.cases import Row


def targets(rows: Mapping[int, Row]) -> dict[str, dict[str, int]]:
    """Side -> what computed its answers (see ``types.Trace``) and how many, as far as they say so."""
    found: dict[str, collections.Counter[str]] = {}
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            if target := turn["trace"].get("target"):
                found.setdefault(str(row[1].get("side")), collections.Counter())[str(target)] += 1
    return {side: dict(counts.most_common()) for side, counts in found.items()}


def doubts(environment: Mapping[str, Any]) -> list[str]:
    """Why times are doubtful, as the host noted it for the runs that made the answers."""
    load = environment.get("load")
    told = [one.get("doubt") for one in load if isinstance(one, Mapping)] if isinstance(load, list) else []
    return [f"times are doubtful: {doubt}" for doubt in dict.fromkeys(told) if isinstance(doubt, str)]
