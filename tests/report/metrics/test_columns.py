"""The leaderboard's columns, on traces small enough to check by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from ianvs_specdec.common.types import Step
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.intervals import half_width
from tests.report.metrics.traces import baseline, cloud_row, completion, edge_row, response, value

ROWS = [
    edge_row(completion([(1.0, 1), (3.0, 4)], [Step(5, 3, 4, 6)])),
    cloud_row(completion([(2.0, 1), (2.5, 1), (3.0, 1)], [Step(5, 0, 1, 6), Step(0, 0, 1, 1)], text="C")),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Time to First Token", 1.5),
        ("Internal Token Latency", (2.0 + 1.0) / (4 + 2)),
        ("Latency", 3.0),
        ("Throughput", 8 / 6),
        ("Mean Accepted Tokens", 6 / 3),
        ("Acceptance Rate", 3 / 10),
        ("Work Amplification", 13 / 6),
        ("Edge Ratio", 50),
        ("Sent as Text", 50),
        ("Accuracy", 50),
        ("Edge Prompt Tokens", 10),
        ("Cloud Completion Tokens", 3),
        ("Time to First Token p50", 1.5),
        ("Time to First Token p99", 1.99),
        ("Chunk Gap p50", 0.5),
        ("Queries", 2),
        # What is not known is undefined, not 0.
        *((name, math.nan) for name in ("Speedup", "Bandwidth Up", "Cloud Cost", "Goodput", "Lossless CI95")),
    ],
)
def test_by_hand(name: str, expected: float) -> None:
    assert value(name, ROWS) == pytest.approx(expected, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("backend", "form"), [("SplitSpecDec", "Token Ids"), ("SlicedSpecDec", "Hidden States"), ("api", "Text")]
)
def test_sent_form_by_back_end(backend: str, form: str) -> None:
    rows = [edge_row(completion([(1.0, 1)]), backend=backend), cloud_row(completion([(1.0, 1)]), backend=backend)]
    found = {name: value(f"Sent as {name}", rows) for name in ("Text", "Token Ids", "Hidden States")}
    assert found == {"Text": 0, "Token Ids": 0, "Hidden States": 0, form: 50}


def test_truncated_prompts_are_counted_if_reported() -> None:
    def rows(*truncated: int | None) -> list[list[Any]]:
        asked = [msgspec.structs.replace(completion([(1.0, 1)]), truncated=tokens) for tokens in truncated]
        return [edge_row(*asked), cloud_row(completion([(1.0, 1)]))]

    assert value("Truncated Prompts", rows(0, 7, 300)) == 2
    assert math.isnan(value("Truncated Prompts", rows(0, None)))
    assert value("Truncated Prompts", rows(7, None)) == 1


def test_every_column_survives_an_empty_answer_and_foreign_results() -> None:
    foreign = {"completion": "B", "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "perf": {}}
    undefined = ("Internal", "Mean Accepted", "Acceptance", "Work", "Speedup", "Chunk")
    for rows in (
        [edge_row(completion([], text=""))],
        [edge_row(completion([(1.0, 1)]))],
        [[True, foreign, None, None]],
    ):
        for name in METRICS:
            number = value(name, rows)
            assert isinstance(number, float), name
            if name.startswith(undefined) and not name.endswith(" Known"):
                assert math.isnan(number), name


def test_sums_without_steps_give_acceptance_only() -> None:
    told = completion([(1.0, 1), (3.0, 4)])
    told.trace = msgspec.structs.replace(told.trace, drafts=(12, 3))
    rows = [edge_row(told), edge_row(completion([(1.0, 1), (3.0, 4)], [Step(8, 3, 4, 9)]))]
    assert value("Acceptance Rate", rows) == pytest.approx(6 / 20)
    assert math.isnan(value("Mean Accepted Tokens", rows[:1]))
    assert math.isnan(value("Work Amplification", rows[:1]))
    # Passes of the target in place of steps: 4 tokens after the prompt's.
    told.trace.passes = 2
    assert value("Mean Accepted Tokens", [edge_row(told)]) == 4 / 2
    assert value("Work Amplification", [edge_row(told)]) == (12 + 2) / 4
    told.trace.steps = [Step(8, 3, 2, 9)]
    assert math.isnan(value("Acceptance Rate", [edge_row(told)])), "not all steps are known"


def test_drafting_share_is_relative_to_busy_time() -> None:
    def drafting(seconds: float, drafted: float | None) -> Any:
        answer = completion([(seconds / 2, 1), (seconds, 4)])
        answer.trace.drafting = drafted
        return answer

    edge, cloud = edge_row(drafting(1.0, 0.25)), cloud_row(drafting(3.0, 0.5))
    assert value("Drafting Share", [edge, cloud]) == pytest.approx(100 * 0.75 / 4)
    cascade = [True, cloud[1], edge[1], cloud[1]]
    assert value("Drafting Share", [cascade]) == pytest.approx(100 * 0.75 / 4)
    assert math.isnan(value("Drafting Share", [edge, edge_row(drafting(1.0, None))]))


def test_speedup_is_a_ratio_of_sums_over_the_same_queries() -> None:
    rows = [
        edge_row(completion([(1.0, 2), (2.0, 2)]), baseline=baseline(6.0, 4)),
        cloud_row(completion([(1.0, 1), (4.0, 3)]), baseline=baseline(6.0, 4)),
    ]
    assert value("Speedup", rows) == 2.0
    assert value("Lossless", rows) == 100.0
    assert value("Near Ties", rows) == 0.0
    rows.append(edge_row(completion([(1.0, 1)]), baseline=None))
    assert math.isnan(value("Speedup", rows))
    # Of other hardware, and without a token to divide by.
    rows = [edge_row(completion([(1.0, 2)]), baseline=baseline(*known)) for known in ((None, 2), (1.0, 0))]
    assert (value("Lossless", rows), value("Speedup Known", rows)) == (100.0, 0)


def test_a_differing_turn_ends_the_comparison() -> None:
    differing = baseline(3.0, 2, identical=False, difference=1, near_tie=True)
    two = (completion([(1.0, 1), (2.0, 1)]), completion([(1.0, 1)]))
    rows = [edge_row(*two, baseline=[differing, None]), edge_row(*two, baseline=[baseline(3.0, 2), baseline(1.0, 1)])]
    assert value("Lossless", rows) == 50.0
    assert value("Near Ties", rows) == 50.0
    assert value("Speedup", rows) == pytest.approx((3 + 3 + 1) / (2 + 2 + 1))
    rows[0] = edge_row(*two, baseline=[{**differing, "near_tie": False}, None])
    assert value("Near Ties", rows) == 0.0
    rows[0] = edge_row(*two, baseline=[{**differing, "near_tie": None}, None])
    assert math.isnan(value("Near Ties", rows))


def test_lossless_of_sampled_and_lossy_answers() -> None:
    answer = completion([(1.0, 1)])
    assert math.isnan(value("Lossless", [edge_row(answer, baseline=baseline(1.0, 1), greedy=False)]))
    for known in (baseline(1.0, 1), None):
        assert value("Lossless", [edge_row(answer, baseline=known, greedy=False, lossy=True)]) == 0.0


@pytest.mark.parametrize("name", ["Throughput", "Time to First Token", "Chunk Gap p50", "Goodput"])
def test_replayed_timings_count_only_from_one_machine_per_side(name: str) -> None:
    def rows(*machines: tuple[str, bool]) -> list[list[Any]]:
        slo = {"latency": 9.0}
        chunks = [(1.0, 1), (2.0, 2)]
        return [edge_row(completion(chunks), hardware=h, replayed=r, slo=slo) for h, r in machines]

    assert not math.isnan(value(name, rows(("h1", True), ("h1", False))))
    assert math.isnan(value(name, rows(("h1", True), ("h2", False))))
    two_sides = [*rows(("h1", True)), cloud_row(completion([(1.0, 1), (2.0, 2)]), hardware="server", slo={"ttft": 9.0})]
    assert not math.isnan(value(name, two_sides))
    assert value("Replayed", two_sides) == 1


def test_the_edge_s_work_in_a_cascade_counts() -> None:
    edge, cloud = response(completion([(1.0, 1), (2.0, 1)])), response(completion([(0.5, 1), (1.0, 1)]), side="cloud")
    rows = [[True, cloud, edge, cloud]]
    assert value("Latency", rows) == 3.0
    assert value("Time to First Token", rows) == 2.5
    assert value("Internal Token Latency", rows) == 0.5
    assert value("Edge Completion Tokens", rows) == 2


def test_cascade_latency_includes_a_failed_edge() -> None:
    cloud = response(completion([(0.5, 1), (1.0, 1)]), side="cloud", cost=0.003)
    given_up = {"error": "no answer", "failures": [(2.0, "HTTP 500"), (5.0, "time-out")]}
    edge = response(**given_up)
    answered_once = response(completion([(1.0, 1)]), **given_up, cost=0.001)
    assert value("Latency", [[True, cloud, edge, cloud]]) == 6.0
    assert value("Time to First Token", [[True, cloud, edge, cloud]]) == 5.5
    assert value("Latency", [[True, cloud, answered_once, cloud]]) == 7.0
    sampled = response(completion([(1.0, 1)]), cost=0.001)
    sampled["samples"] = [{"turns": [], **given_up}]
    assert value("Latency", [[False, sampled, sampled, None]]) == 6.0
    # It made no tokens, whatever they cost.
    rows = [[True, cloud, edge, cloud], edge_row(completion([(1.0, 1)]), cost=0.001)]
    assert value("Edge Cost", rows) == pytest.approx(0.5)
    assert value("Cloud Cost", rows) == pytest.approx(1.5)


def test_goodput_counts_queries_within_their_limits() -> None:
    fast, slow = completion([(1.0, 1), (2.0, 2)]), completion([(1.0, 1), (6.0, 2)])
    for slo, met in (({"latency": 3.0}, 1), ({"ttft": 0.5}, 0), ({"itl": 0.5}, 1), ({"ttft": 1.0, "itl": 2.5}, 2)):
        assert value("Goodput", [edge_row(fast, slo=slo), edge_row(slow, slo=slo)]) == pytest.approx(met / 8)


def test_tokens_of_the_first_chunk_have_no_token_latency() -> None:
    rows = [edge_row(completion([(1.0, 3), (3.0, 4)]), slo={"itl": 0.5})]
    assert value("Internal Token Latency", rows) == 0.5
    assert value("Goodput", rows) == pytest.approx(1 / 3)


def test_open_ended_accuracy_is_chrf_and_unscored_queries_are_left_out() -> None:
    rows = [
        edge_row(completion([(1.0, 1)], text="the same text"), scorer="text"),
        edge_row(completion([(1.0, 1)], text="zzz"), scorer="text"),
        edge_row(completion([(1.0, 1)], text="zzz"), scorer="text"),
    ]
    gold = [{"references": ["the same text"]}, {"references": ["a a a"]}, {"references": []}]
    assert value("Accuracy", rows, gold) == pytest.approx(50.0)
    assert math.isnan(value("Accuracy", rows[2:], gold[2:]))


def test_the_bootstrap_interval_agrees_with_theory() -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(10, 2, size=400)
    assert half_width(values, np.ones(400)) == pytest.approx(1.96 * 2 / 20, rel=0.15)
    assert half_width(values, np.ones(400)) == half_width(values, np.ones(400))
    # A ratio of sums whose parts move together is exact.
    assert half_width(3 * values, values) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(half_width(values[:1], np.ones(1)))
    assert not math.isnan(half_width(values[:2], np.ones(2)))
    assert math.isnan(half_width(values, np.zeros(400)))


def test_a_changed_number_of_rows_is_an_error() -> None:
    with pytest.raises(Exception, match="2 results for 1 answers"):
        value("Accuracy", ROWS, ["B"])
