"""The table that all metrics of a test case share, and the tables that reports make of it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np

from ianvs_specdec.report.metrics.table import Table
from tests.report.metrics.test_columns import completion, edge_row


def rows(*texts: str) -> list[list[Any]]:
    """One answer each, of one turn or, every other, of two."""
    found = []
    for number, text in enumerate(texts):
        said = completion([(1.0, 1), (1.5 + number, 2)], text=text)
        row = edge_row(*[said] * (1 + number % 2))
        row[1]["group"] = f"g{number}"
        found.append(row)
    return found


def test_metrics_share_a_table_as_long_as_the_results_live() -> None:
    first, golds = rows("B", "C", "B"), ["B", "B", "B"]
    table = Table.of(golds, first)
    assert Table.of(golds, list(first)) is table
    part = Table.of(golds[:2], first[:2])
    assert len(part) == 2
    assert Table.of(golds, rows("B", "C", "B")) is not table
    alive = weakref.ref(first[0][1])
    del first
    gc.collect()
    assert alive() is None


def test_scores_from_elsewhere_leave_the_table_as_it_was() -> None:
    table = Table.of(["B", "B"], rows("B", "C"))
    scored = table.with_scores({1: 0.25, 0: None})
    assert np.isnan(scored.query("score")[0])
    assert scored.query("score")[1] == 0.25
    assert table.query("score").tolist() == [100.0, 0.0]
    assert scored.query("latency").tolist() == table.query("latency").tolist()


def test_a_part_has_its_own_queries_with_all_their_turns() -> None:
    table = Table.of(["B"] * 4, rows("B", "C", "B", "B"))
    part = table.part(np.array([1, 3]))
    assert part.groups == ["g1", "g3"]
    for name in ("score", "latency", "tokens", "edge_completion"):
        assert part.query(name).tolist() == table.query(name)[[1, 3]].tolist()
    assert part.turn("query").tolist() == [0, 0, 1, 1]
    assert len(part.gaps) == 0
