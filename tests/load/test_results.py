"""Results of rounds: percentiles, windows, weights, intervals, server metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.load.arrivals import LEAD_IN
from ianvs_specdec.load.generator import RequestRecord
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.results import Measurement, result, server_metrics
from ianvs_specdec.load.rounds import Round, RoundKey, Sample


def answered(index: int, due: float, ttft: float, pause: float, tokens: int, late: float = 0.0) -> RequestRecord:
    sent = LEAD_IN + due + late
    last = sent + ttft + pause * (tokens - 1)
    return RequestRecord(index, LEAD_IN + due, "completed", sent, sent + ttft, last, last, 3, tokens, f"text {index}")


def figures(requests: list[RequestRecord], *, samples: list[Sample] | None = None, **more: Any) -> dict[str, Any]:
    plan = SweepPlan(**{"rates": (1.0,), "data": "d", "duration": 10.0, **more})
    return result(Measurement.of([round_of(0, requests, samples)], plan), plan, None, {})


def round_of(repeat: int, requests: list[RequestRecord], samples: list[Sample] | None = None) -> Round:
    return Round(RoundKey(1.0, "p", repeat), 1000.0, 3.0, requests, samples or [])


def test_paired_comparison() -> None:
    plan = SweepPlan(rates=(1.0,), data="d", duration=10.0, slo={"latency": 5.0})
    chance = np.random.default_rng(1).exponential(1.0, 50)
    slow, fast = (
        Measurement.of(
            [round_of(0, [answered(i, 0.05 * i, float(t) * by, 0.0, 2) for i, t in enumerate(chance)])], plan
        )
        for by in (1.0, 0.5)
    )
    found = fast.ratios(slow)
    # Each takes half as long, in every draw.
    assert found["latency.mean"] == {"ratio": 0.5, "interval": [0.5, 0.5], "by_repeat": [0.5]}
    low, high = found["slo_goodput"]["interval"]
    assert low <= found["slo_goodput"]["ratio"] <= high


def test_rounds_are_pooled() -> None:
    plan = SweepPlan(rates=(1.0,), data="d", duration=10.0, warmup=1.0, repeats=2)

    # In the first repeat this policy took half as long as the other one, in the second one as long.
    def measured(*pauses: float) -> Measurement:
        asked = [[answered(i, 2.0, 0.1, pause, 3) for i in range(n)] for n, pause in zip((3, 6), pauses, strict=True)]
        return Measurement.of([round_of(repeat, requests) for repeat, requests in enumerate(asked)], plan)

    ours, theirs = measured(0.1, 0.2), measured(0.25, 0.2)
    found = result(ours, plan, theirs, {"theirs": theirs})
    assert [found[name] for name in ("rounds", "requests", "completed")] == [2, 9, 9]
    assert found["output_tokens_per_second"] == pytest.approx(27 / 18)
    assert found["latency"]["mean"] == pytest.approx((3 * 0.3 + 6 * 0.5) / 9)
    assert found["client_cpu_seconds_total"] == 6.0
    assert found["ratios"]["theirs"]["latency.mean"]["by_repeat"] == [0.5, 1.0]
    assert found["ratios"]["theirs"]["latency.mean"]["ratio"] == pytest.approx(3.9 / 4.8, abs=1e-6)
    # The third request of one repeat is not that of the other.
    assert found["lossless"] == {"compared": 9, "same": 9, "share": 1.0}
    first, *others = (replace(one, text="another") for one in theirs.rounds[1].requests)
    other = Measurement.of([theirs.rounds[0], round_of(1, [replace(first, status="failed"), *others])], plan)
    assert result(ours, plan, other, {})["lossless"] == {"compared": 8, "same": 3, "share": 0.375}


def test_percentiles_match_numpy() -> None:
    times = np.random.default_rng(0).exponential(1.0, 200)
    found = figures([answered(i, 0.01 * i, float(t), 0.1, 5) for i, t in enumerate(times)])["ttft"]
    for name, percent in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert found[name] == pytest.approx(np.percentile(times, percent, method="inverted_cdf"), abs=1e-6)
    assert found["mean"] == pytest.approx(times.mean(), abs=1e-6)


def test_interval_coverage() -> None:
    covered = 0
    for seed in range(20):
        times = np.random.default_rng(seed).exponential(1.0, 60)
        found = figures([answered(i, 0.01 * i, float(t), 0.1, 5) for i, t in enumerate(times)], seed=seed)
        low, high = found["intervals"]["ttft"]["mean"]
        covered += low <= 1.0 <= high
    assert covered >= 17


def test_itl_weighs_tokens_tpot_requests() -> None:
    found = figures([answered(0, 0.0, 0.1, 0.1, 2), answered(1, 0.0, 0.1, 0.3, 10)])
    assert found["tpot"]["mean"] == pytest.approx(0.2)
    assert found["itl"]["mean"] == pytest.approx((1 * 0.1 + 9 * 0.3) / 10)
    assert found["itl"]["p50"] == pytest.approx(0.3)


def test_answers_of_one_token() -> None:
    found = figures([answered(0, 1.0, 0.1, 0.0, 1)], slo={"tpot": 0.001})
    assert found["tpot"] == dict.fromkeys(("p50", "p90", "p95", "p99", "mean"))
    assert found["slo_goodput"] == 0.1


def test_throughput_within_window() -> None:
    # Eleven tokens from 1 s to 11 s; five from 0.5 s to 2.5 s, of which the last two come after the warm-up.
    found = figures([answered(0, 1.0, 0.0, 1.0, 11), answered(1, 0.0, 0.5, 0.5, 5)], warmup=1.5)
    assert found["requests"] == 0
    assert found["output_tokens_per_second"] == pytest.approx((8.5 + 2.0) / 8.5)
    assert found["requests_per_second"] == pytest.approx(1 / 8.5, abs=1e-6)
    assert found["notes"] == ["no request after the warm-up"]


def test_client_time_and_delay() -> None:
    samples = [
        Sample(1000.0 + LEAD_IN + at, seconds, None) for at, seconds in ((-3, 1.0), (1, 5.0), (9, 5.5), (12, 9.0))
    ]
    found = figures([answered(0, 1.0, 0.1, 0.1, 3, late=0.3)], samples=samples)
    assert (found["client_cpu_seconds"], found["client_cpu_seconds_total"]) == (0.5, 3.0)
    assert found["client_delay_p99"] == pytest.approx(0.3)
    assert found["ttft"]["p50"] == pytest.approx(0.1)
    assert "requests were sent late" in found["notes"][0]


COUNTERS = ("verifications", "drafted_tokens", "accepted_tokens", "emitted_tokens", "verified_tokens")


def server_sample(at: float, queue: float, *counts: float) -> Sample:
    counters = {f"engine_{name}_total": count for name, count in zip(COUNTERS, counts, strict=True)}
    return Sample(100 + at, 0.0, {"queue_length": queue, "waiting_for_room": 1.0, "sequences": 2 * queue, **counters})


def watched(repeat: int, samples: list[Sample]) -> Round:
    return Round(RoundKey(1.0, "p", repeat), 100.0 - LEAD_IN, 0.0, [], samples)


SERVER_SAMPLES = [
    server_sample(-1, 0, 0, 0, 0, 0, 0),
    server_sample(0, 9, 7, 7, 7, 7, 7),
    server_sample(1, 1, 10, 10, 10, 10, 10),
    server_sample(2, 2, 20, 50, 40, 60, 70),
    server_sample(3, 3, 30, 50, 40, 70, 80),
    server_sample(9, 9, 99, 999, 99, 99, 999),
]


def test_server_metrics_within_window() -> None:
    found = server_metrics([watched(0, SERVER_SAMPLES)], warmup=1.0, duration=4.0)
    assert found["acceptance_rate"] == pytest.approx(30 / 40)
    assert found["mean_accepted_tokens"] == pytest.approx(60 / 20)
    assert found["work_amplification"] == pytest.approx(70 / 60, abs=1e-4)
    assert found["draft_length"] == pytest.approx(40 / 20)
    assert found["queue"] == {"mean": 3.0, "max": 4.0}
    assert found["sequences"] == {"mean": 4.0, "max": 6.0}


def test_server_metrics_of_several_rounds() -> None:
    # The server goes on counting; a warm-up and an end lie between the two windows.
    later = [server_sample(1, 7, 1000, 2000, 500, 100, 100), server_sample(3, 1, 1010, 2010, 505, 140, 160)]
    found = server_metrics([watched(0, SERVER_SAMPLES), watched(2, later)], warmup=1.0, duration=4.0)
    silent = [Sample(100.0 + at, 0.0, server) for at, server in enumerate((None, {"requests_total": 1.0}, None))]
    assert set(server_metrics([watched(0, silent)], 0.0, 3.0).values()) == {None}
    assert found["acceptance_rate"] == pytest.approx((30 + 5) / (40 + 10))
    assert found["mean_accepted_tokens"] == pytest.approx((60 + 40) / (20 + 10), abs=1e-4)
    assert found["queue"] == {"mean": pytest.approx((2 + 3 + 4 + 8 + 2) / 5), "max": 8.0}
