"""The formula of a round, the draft length that maximizes tokens per second, and the mode."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec.backends.split.edge.controller import MAX_LENGTH, Controller
from ianvs_specdec.net.split.breakeven import round_seconds, round_tokens


def measured(way, service, draft, accepted, **options):
    """After many rounds of 8 drafted tokens, of which ``accepted`` were right, with these seconds."""
    controller = Controller(**options)
    for _ in range(100):
        controller.record_draft_time(8, 8 * draft)
        controller.service.add(service)
        controller.record_verdict(8, accepted)
        controller.record_round_trip(way)
    return controller


def test_fixed_length_within_budget():
    controller = Controller(5)
    assert (controller.choose_length(64), controller.choose_length(3)) == (5, 3)


def test_length_grows_with_distance_and_acceptance():
    near, far = (measured(way, 0.005, 0.002, 6) for way in (0.0, 0.2))
    assert near.choose_length(64) < far.choose_length(64) <= MAX_LENGTH
    poor, good = (measured(0.02, 0.005, 0.002, accepted) for accepted in (1, 7))
    assert poor.choose_length(64) < good.choose_length(64)
    assert measured(0.0, 0.005, 0.1, 0).choose_length(64) == 0, "nothing is accepted"


def test_whole_accepted_drafts_have_no_rejection():
    whole, cut = (measured(0.02, 0.005, 0.002, accepted) for accepted in (8, 7))
    assert whole.acceptance > 0.99 > 0.9 > cut.acceptance
    assert cut.choose_length(64) < whole.choose_length(64) == MAX_LENGTH


def test_fixed_mode():
    assert not any(Controller(mode="split").choose_mode() for _ in range(9))
    assert all(Controller(mode="stream").choose_mode() for _ in range(9))


def answers(controller, count, split, stream, opening=0.02):
    """The modes of ``count`` answers of 100 tokens, at these rates of both modes."""
    modes = []
    for _ in range(count):
        controller.opening = opening
        streams = controller.choose_mode()
        controller.service.add(0.005)
        controller.record_answer(streams, 100, 100 / (stream if streams else split))
        modes.append(streams)
    return modes


@pytest.mark.parametrize(("split", "stream"), [(200, 100), (100, 200)])
def test_auto_mode_prefers_the_faster_mode(split, stream):
    modes = answers(Controller(mode="auto"), 400, split, stream)
    assert modes[0], "streaming depends on no distance"
    slower = modes.count(split > stream)
    assert 2 <= slower <= 40


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_formula_matches_simulated_rounds(acceptance):
    length, way, service, draft = 3, 0.04, 0.03, 0.005
    dice, seconds, tokens, rounds = random.Random(1), 0.0, 0, 40_000
    for _ in range(rounds):
        right = [dice.random() < acceptance for _ in range(length + 1)]
        tokens += 1 + [*right[:length], False].index(False)
        if all(right):
            seconds += max((length + 1) * draft, service, (way + service) / 4)
        else:
            seconds += length * draft + way + service
    told = round_seconds(length, acceptance, round_trip=way, service=service, draft=draft, in_flight=4)
    assert told == pytest.approx(seconds / rounds, rel=0.01)
    assert round_tokens(length, acceptance) == pytest.approx(tokens / rounds, rel=0.01)
