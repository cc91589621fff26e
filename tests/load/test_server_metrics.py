"""What a server tells of itself is taken from its own counters, between the end of the warm-up and that of the
arrivals."""

from __future__ import annotations

import pytest

from ianvs_specdec.load.arrivals import LEAD_IN
from ianvs_specdec.load.results import server_metrics
from ianvs_specdec.load.rounds import Round, RoundKey, Sample

COUNTERS = ("verifications", "drafted_tokens", "accepted_tokens", "emitted_tokens", "verified_tokens")


def sample(at: float, queue: float, *counts: float) -> Sample:
    counters = {f"engine_{name}_total": count for name, count in zip(COUNTERS, counts, strict=True)}
    return Sample(100 + at, 0.0, {"queue_length": queue, "waiting_for_room": 1.0, "sequences": 2 * queue, **counters})


def watched(repeat: int, samples: list[Sample]) -> Round:
    return Round(RoundKey(1.0, "p", repeat), 100.0 - LEAD_IN, 0.0, [], samples)


SAMPLES = [
    sample(-1, 0, 0, 0, 0, 0, 0),
    sample(0, 9, 7, 7, 7, 7, 7),
    sample(1, 1, 10, 10, 10, 10, 10),
    sample(2, 2, 20, 50, 40, 60, 70),
    sample(3, 3, 30, 50, 40, 70, 80),
    sample(9, 9, 99, 999, 99, 99, 999),
]


def test_server_metrics_within_window() -> None:
    found = server_metrics([watched(0, SAMPLES)], warmup=1.0, duration=4.0)
    assert found["acceptance_rate"] == pytest.approx(30 / 40)
    assert found["mean_accepted_tokens"] == pytest.approx(60 / 20)
    assert found["work_amplification"] == pytest.approx(70 / 60, abs=1e-4)
    assert found["draft_length"] == pytest.approx(40 / 20)
    assert found["queue"] == {"mean": 3.0, "max": 4.0}
    assert found["sequences"] == {"mean": 4.0, "max": 6.0}


def test_server_metrics_of_several_rounds() -> None:
    # The server goes on counting; a warm-up and an end lie between the two windows.
    later = [sample(1, 7, 1000, 2000, 500, 100, 100), sample(3, 1, 1010, 2010, 505, 140, 160)]
    found = server_metrics([watched(0, SAMPLES), watched(2, later)], warmup=1.0, duration=4.0)
    silent = [Sample(100.0 + at, 0.0, server) for at, server in enumerate((None, {"requests_total": 1.0}, None))]
    assert set(server_metrics([watched(0, silent)], 0.0, 3.0).values()) == {None}
    assert found["acceptance_rate"] == pytest.approx((30 + 5) / (40 + 10))
    assert found["mean_accepted_tokens"] == pytest.approx((60 + 40) / (20 + 10), abs=1e-4)
    assert found["queue"] == {"mean": pytest.approx((2 + 3 + 4 + 8 + 2) / 5), "max": 8.0}
