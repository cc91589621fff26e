"""The formula of a round."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec.net.split.breakeven import round_seconds, round_tokens


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


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_rounds_are_what_a_simulation_of_them_takes(acceptance):
    length, way, service, draft = 3, 0.04, 0.03, 0.005
    dice, seconds, rounds = random.Random(1), 0.0, 40_000
    for _ in range(rounds):
        if all(dice.random() < acceptance for _ in range(length + 1)):
            seconds += max((length + 1) * draft, service, (way + service) / 4)
        else:
            seconds += length * draft + way + service
    told = round_seconds(length, acceptance, way=way, service=service, draft=draft, in_flight=4)
    assert told == pytest.approx(seconds / rounds, rel=0.01)
