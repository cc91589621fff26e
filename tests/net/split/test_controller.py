"""The length that brings the most tokens per second, and the mode."""

from __future__ import annotations

import pytest

from ianvs_specdec.backends.split.edge.controller import FORGOTTEN, LONGEST, SETTLED, WORTH_SENDING, Controller
from ianvs_specdec.net.split.breakeven import round_rate, round_tokens


def taught(way, service, draft, accepted, **options):
    """After many rounds of 8 drafted tokens with these seconds and so many accepted."""
    controller = Controller(**options)
    for _ in range(100):
        controller.drafted(8, 8 * draft)
        controller.answered(8, accepted, service, way)
    return controller


def test_a_fixed_length_is_kept_within_the_budget():
    controller = Controller(5)
    assert (controller.choose(64), controller.choose(3)) == (5, 3)


def test_the_further_away_the_verifier_is_the_longer_drafts_are():
    near, far = (taught(way, 0.005, 0.002, 6) for way in (0.0, 0.2))
    assert near.choose(64) < far.choose(64) <= LONGEST


def test_the_more_is_accepted_the_longer_drafts_are():
    poor, good = (taught(0.02, 0.005, 0.002, accepted) for accepted in (1, 7))
    assert poor.choose(64) < good.choose(64)


def test_without_anything_accepted_nothing_is_drafted_that_takes_long():
    assert taught(0.0, 0.005, 0.1, 0).choose(64) == 0


@pytest.mark.parametrize("in_flight", [0, 1, 4])
def test_the_rate_is_that_of_the_formula(in_flight):
    controller = taught(0.02, 0.005, 0.002, 7, in_flight=in_flight)
    told = round_rate(4, controller.acceptance, way=0.02, service=0.005, draft=0.002, in_flight=min(in_flight, 2))
    assert controller.acceptance ** (2 * 5) ** 0.5 > WORTH_SENDING
    assert controller.rate(4) == pytest.approx(told, rel=0.05)


def test_only_drafts_that_are_worth_sending_are_counted_on():
    poor = taught(0.2, 0.005, 0.001, 2, in_flight=8)
    hit = poor.acceptance**9
    assert hit < WORTH_SENDING
    assert poor.rate(8) == pytest.approx(
        round_rate(8, poor.acceptance, way=0.2, service=0.005, draft=0.001, in_flight=1)
    )


def test_a_verifier_far_away_streams_and_a_near_one_does_not():
    far, near = (taught(way, 0.005, 0.0005, 7, mode="auto") for way in (0.2, 0.0))
    assert far.decide(64)
    assert not near.decide(64)


def streaming(way, tokens, seconds, **options):
    """One that tried streaming, and was brought so many tokens by each message."""
    controller = taught(way, 0.005, 0.001, 6, mode="auto", beside=True, **options)
    assert controller.decide(64)
    for _ in range(SETTLED):
        controller.streamed(tokens, seconds)
    return controller


def test_where_the_verifier_drafts_streaming_is_tried():
    assert not streaming(0.02, 1, 0.05).decide(64)
    assert streaming(0.02, 4, 0.01).decide(64)


def test_what_streaming_brought_is_believed_until_it_is_forgotten():
    controller = streaming(0.02, 1, 0.05)
    assert not controller.decide(64)
    for _ in range(FORGOTTEN // 7):
        assert not controller.decide(64)
        controller.answered(8, 6, 0.005, 0.02)
    for _ in range(3):
        controller.answered(8, 6, 0.005, 0.02)
    assert controller.decide(64)


def test_streaming_is_tried_again_and_again_but_seldom():
    controller, tries = streaming(0.02, 1, 0.05), 0
    for _ in range(4 * FORGOTTEN):
        if controller.decide(64):
            tries += 1
            for _ in range(SETTLED):
                controller.streamed(1, 0.05)
        controller.answered(1, 0, 0.005, 0.02)
    assert tries in (3, 4)


def test_a_change_that_takes_longer_than_it_brings_is_not_made():
    """Streaming is a little faster, and the change is dear."""
    controller = taught(0.2, 0.005, 0.001, 7, mode="auto")
    controller.streamed(1, 1.0)
    split = controller.split_rate(64)
    controller._streamed.over, controller._streamed.under = 1.02 * split, 1.0
    assert not controller.decide(64)
    controller._streamed.over = 2 * split
    assert controller.decide(64)


def test_between_modes_that_are_about_equal_there_is_an_end_of_changes():
    controller, changes = taught(0.001, 0.005, 0.001, 6, mode="auto"), 0
    for _ in range(20):
        streams = controller.streams
        changes += controller.decide(64) != streams
        for _ in range(SETTLED):
            rate = controller.rate(controller.choose(64))
            if controller.streams:
                controller.streamed(1, 1 / (0.93 * rate))
            else:
                controller._streamed.over, controller._streamed.under = 1.07 * rate, 1.0
                controller._since += 1
    assert changes <= 4


def test_a_verifier_that_comes_nearer_is_drafted_for_again():
    controller = streaming(0.3, 2, 0.02)
    for _ in range(SETTLED):
        controller.streamed(2, 0.02)
        assert controller.decide(64)
    for _ in range(20):
        controller.travelled(0.001)
    assert not controller.decide(64)


def test_rounds_that_take_longer_than_the_formula_says_count():
    """The more each round takes besides, the longer drafts should be."""
    slow, fast = (taught(0.02, 0.005, 0.002, 6, in_flight=4) for _ in range(2))
    for controller, late in ((slow, 0.015), (fast, 0.0)):
        before = controller.rate(4)
        for _ in range(200):
            controller.answered(8, 6, 0.005, 0.02, elapsed=8 * 0.002 + 0.025 + late)
            controller.answered(8, 6, 0.005, elapsed=0.025 + late, ahead=True)
        seconds = round_tokens(4, controller.acceptance) / controller.rate(4)
        assert seconds == pytest.approx(round_tokens(4, controller.acceptance) / before + late, rel=0.05)
    assert slow.choose(64) > fast.choose(64)


def test_a_few_slow_rounds_are_hardly_believed():
    controller = taught(0.02, 0.005, 0.002, 6)
    before = controller.rate(4)
    for _ in range(2):
        controller.answered(8, 6, 0.005, 0.02, elapsed=2 * 0.041)
    assert controller.rate(4) > 0.75 * before


def test_an_outage_is_not_taken_for_a_round():
    controller = taught(0.02, 0.005, 0.002, 6)
    for _ in range(20):
        controller.answered(8, 6, 0.005, 0.02, elapsed=0.041)
    before = controller.rate(4)
    controller.answered(8, 6, 0.005, 0.02, elapsed=1000.0)
    assert controller.rate(4) > 0.9 * before


def test_the_mode_follows_what_drafts_were_seen_to_bring():
    """Rounds that always take several times as long as the formula says are no outages."""
    controller = taught(0.004, 0.005, 0.001, 6, in_flight=4, mode="auto", beside=True)
    streams = []
    for _ in range(100):
        if controller.decide(64):
            controller.streamed(4, 0.04)
        else:
            controller.drafted(8, 0.008)
            controller.answered(8, 6, 0.005, 0.004, elapsed=0.14)
        streams.append(controller.streams)
    assert controller.split_rate(64) > 100 > 7 / 0.14
    assert all(streams[-50:])


def test_a_mode_that_is_chosen_is_kept():
    assert not taught(0.2, 0.005, 0.0005, 7, mode="split").decide(64)
    assert taught(0.0, 0.005, 0.0005, 7, mode="stream").decide(64)


def test_several_outcomes_are_drafted_for_where_a_draft_takes_a_good_part_of_the_way():
    controller = Controller()
    assert not controller.keeps_several(4), "before anything is known"
    controller.drafted(1, 0.005)
    controller.answered(4, 2, 0.01, 0.02)
    assert controller.keeps_several(4)
    assert not controller.keeps_several(1)


def test_rounds_whose_outcomes_were_kept_ready_make_longer_drafts_cheap():
    rates = []
    for kept in (False, True):
        controller = Controller(in_flight=4)
        for _ in range(50):
            controller.drafted(8, 8 * 0.002)
            controller.answered(8, 6, 0.005, 0.02, kept=kept)
        rates.append(controller.rate(8))
    assert rates[1] > rates[0]
