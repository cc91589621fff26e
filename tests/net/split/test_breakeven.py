"""The formula of a round, and the round trip at which streaming is as fast."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec.net.split.breakeven import (
    best_break_even,
    break_even,
    round_rate,
    round_seconds,
    round_tokens,
    shared_rate,
)


def test_a_round_without_drafting_ahead_is_all_its_parts():
    seconds = round_seconds(4, 0.8, way=0.05, service=0.02, draft=0.005)
    assert seconds == pytest.approx(4 * 0.005 + 0.05 + 0.02)
    assert round_tokens(4, 0.8) == pytest.approx((1 - 0.8**5) / 0.2)


@pytest.mark.parametrize(
    ("way", "service", "draft", "slowest"),
    [(0.08, 0.01, 0.001, 0.09 / 4), (0.02, 0.03, 0.001, 0.03), (0.02, 0.01, 0.02, 5 * 0.02)],
)
def test_where_all_is_right_the_slowest_part_sets_the_pace(way, service, draft, slowest):
    assert round_seconds(4, 1.0, way=way, service=service, draft=draft, in_flight=4) == pytest.approx(slowest)


@pytest.mark.parametrize("in_flight", [0, 1, 4])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_rounds_are_what_a_simulation_of_them_takes(in_flight, acceptance):
    length, way, service, draft = 3, 0.04, 0.03, 0.005
    dice, seconds, rounds = random.Random(1), 0.0, 40_000
    for _ in range(rounds):
        if in_flight and all(dice.random() < acceptance for _ in range(length + 1)):
            seconds += max((length + 1) * draft, service, (way + service) / in_flight)
        else:
            # What is left of the token that was being drafted when the verdict came.
            seconds += length * draft + way + service + (dice.random() * draft if in_flight else 0.0)
    mean = seconds / rounds
    told = round_seconds(length, acceptance, way=way, service=service, draft=draft, in_flight=in_flight)
    assert told == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("in_flight", [0, 1, 2, 4])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("length", [1, 4, 12])
@pytest.mark.parametrize("draft", [0.0005, 0.02])
def test_at_the_break_even_both_are_as_fast(in_flight, acceptance, length, draft):
    streamed = 5.0
    way = break_even(streamed, length, acceptance, service=0.03, draft=draft, in_flight=in_flight)
    if way is None:
        assert round_rate(length, acceptance, way=0.0, service=0.03, draft=draft, in_flight=in_flight) < streamed
        return
    rate = round_rate(length, acceptance, way=way, service=0.03, draft=draft, in_flight=in_flight)
    assert rate == pytest.approx(streamed)


def test_where_streaming_is_faster_without_any_way_there_is_no_break_even():
    assert break_even(1000.0, 4, 0.5, service=0.03, draft=0.005) is None
    assert best_break_even(1000.0, 16, 0.5, service=0.03, draft=0.005) is None


def test_the_best_length_has_the_longest_way():
    ways = [break_even(20.0, length, 0.8, service=0.03, draft=0.005) or 0.0 for length in range(17)]
    assert best_break_even(20.0, 16, 0.8, service=0.03, draft=0.005) == pytest.approx(max(ways))


def test_sessions_of_a_verifier_that_is_hardly_used_do_not_slow_each_other():
    times = {"way": 0.5, "draft": 0.001}
    one, ten = (shared_rate(sessions, 4, 0.8, step=lambda rows: 0.01, **times) for sessions in (1, 10))
    assert ten == pytest.approx(10 * one)


def test_a_full_verifier_brings_what_its_steps_do():
    """Steps that take as long as they have rows: more sessions bring nothing more."""
    rates = [shared_rate(n, 4, 0.8, way=0.01, draft=0.001, step=lambda rows: rows * 0.01) for n in (64, 128)]
    assert rates[1] == pytest.approx(rates[0], rel=0.05)
    assert rates[1] <= round_tokens(4, 0.8) / (5 * 0.01)
