"""Concurrent requests share their common time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.records.response import Response
from ianvs_specdec.report.metrics.table import shared_time
from tests.report.metrics.traces import baseline, completion, edge_row, response, value


def spans(*pairs: tuple[float, float]) -> list[float]:
    issued, latency = np.array(pairs, dtype=float).T
    return list(shared_time(issued, latency))


def test_requests_that_overlap_share_the_time_that_they_have_in_common() -> None:
    assert spans((0, 2), (2, 3), (10, 1)) == [2, 3, 1]
    assert spans((0, 4), (1, 2)) == pytest.approx([3, 1])
    assert spans((5, 3), (5, 3), (5, 3)) == pytest.approx([1, 1, 1])
    assert spans((0, 1), (float("nan"), 7)) == [1, 7]


def test_throughput_counts_overlapping_time_once() -> None:
    keys = iter("abcdefghijklmnop")

    def row(issued: float, key: str = "") -> list[Any]:
        answer = completion([(1.0, 2), (2.0, 2)])
        answer.trace.issued = issued
        own = key or next(keys)
        return edge_row(answer, key=own, baseline=baseline(8.0, 4, issued=issued) | {"key": f"{own} baseline"})

    assert value("Throughput", [row(100.0), row(102.0)]) == 2.0
    assert value("Throughput", [row(100.0), row(100.0)]) == 4.0
    assert value("Throughput", [row(100.0, "same"), row(100.0, "same")]) == 2.0
    assert value("Latency", [row(100.0), row(100.0)]) == 2.0
    assert value("Speedup", [row(100.0), row(100.0)]) == 4.0


def cascade(number: int, edge_issued: float, cloud_issued: float) -> list[Any]:
    """A second on the edge, then two in the cloud."""

    def part(side: str, issued: float, seconds: float) -> Response:
        answer = completion([(seconds / 2, 2), (seconds, 2)])
        answer.trace.issued = issued
        key = f"{side} {number}"
        return response(answer, side=side, key=key, baseline=baseline(seconds, 4, issued=issued) | {"key": key})

    edge, cloud = part("edge", edge_issued, 1.0), part("cloud", cloud_issued, 2.0)
    return [True, copy.deepcopy(cloud), edge, cloud]


@pytest.mark.parametrize(
    ("edge_starts", "cloud_starts"),
    [((0, 3, 6, 9), (1, 4, 7, 10)), ((-100, -99, -98, -97), (100, 102, 104, 106))],
    ids=["asked now", "asked before"],
)
def test_cascade_latency_includes_a_replayed_edge_answer(
    edge_starts: tuple[float, ...], cloud_starts: tuple[float, ...]
) -> None:
    pairs = zip(edge_starts, cloud_starts, strict=True)
    rows = [cascade(number, 1000.0 + edge, 1000.0 + cloud) for number, (edge, cloud) in enumerate(pairs)]
    assert value("Throughput", rows) == pytest.approx(16 / 12, rel=1e-5)
    # Nothing drafts, on the edge or in the cloud.
    assert value("Speedup", rows) == pytest.approx(1.0)
