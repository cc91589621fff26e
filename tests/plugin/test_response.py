"""Figures of a response: times from the first token and from the first chunk."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.plugin.response import Attempt, response_of, turn_of

QUERY = Query(("one?", "two?"), id="q", scorer="none")


def completion(*chunks: tuple[float, int]) -> Completion:
    tokens = sum(count for _, count in chunks)
    return Completion("text", list(range(tokens)), 7, tokens, "stop", Trace(list(chunks)))


def figures(*completions: Completion, samples: tuple[Attempt, ...] = ()) -> dict[str, float | None]:
    turns = [turn_of(answer, replayed=False, cached=False) for answer in completions]
    found: dict[str, float | None] = response_of(QUERY, completions, turns, samples)["perf"]
    return found


def test_times_between_tokens_exclude_the_first_chunk() -> None:
    perf = figures(completion((1.0, 2), (1.5, 3), (3.0, 1)), completion((0.5, 1), (2.5, 4)))
    assert perf["time_to_first_token"] == 1.0
    assert perf["latency"] == pytest.approx(3.0 + 2.5)
    assert perf["internal_token_latency"] == pytest.approx((2.0 + 2.0) / (4 + 4))
    assert perf["throughput"] == pytest.approx(11 / 5.5)


def test_samples_count_for_latency_but_not_for_the_first_token() -> None:
    sample = Attempt([completion((4.0, 1), (5.0, 4))])
    perf = figures(completion((1.0, 1), (2.0, 2)), samples=(sample,))
    assert perf["time_to_first_token"] == 1.0
    assert perf["internal_token_latency"] == pytest.approx(1.0 / 2)
    assert perf["latency"] == pytest.approx(2.0 + 5.0)
    assert perf["throughput"] == pytest.approx((3 + 5) / 7.0)


def test_one_chunk_has_no_time_between_tokens() -> None:
    perf = figures(completion((1.0, 3)))
    assert perf["internal_token_latency"] is None
    assert perf["throughput"] == pytest.approx(3.0)
