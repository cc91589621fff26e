"""The length that brings the most tokens per second, and the mode."""

from __future__ import annotations

import pytest

from ianvs_specdec.split.edge.controller import LONGEST, TRIED_AGAIN, Controller


def taught(way, service, draft, accepted, **options):
    """After many rounds of 8 drafted tokens with these seconds and so many accepted."""
    controller = Controller(**options)
    for _ in range(100):
        controller.drafted(8, 8 * draft)
        controller.answered(8, accepted, way + service, service)
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


@pytest.mark.parametrize("sent_ahead", [False, True])
def test_the_rate_is_that_of_the_formula(sent_ahead):
    controller = taught(0.02, 0.005, 0.002, 6, sent_ahead=sent_ahead)
    a = controller.acceptance
    tokens = sum(a**n for n in range(5))
    least = 0.005 if sent_ahead else 0.025
    seconds = (1 - a**5) * (0.025 + 4 * 0.002) + a**5 * max(least, 5 * 0.002)
    assert controller.rate(4) == pytest.approx(tokens / seconds)


def test_where_verdicts_follow_each_other_slowly_drafts_are_longer():
    controller = taught(0.02, 0.005, 0.001, 7, sent_ahead=True)
    before = controller.choose(64)
    for _ in range(20):
        controller.answered(8, 7, 0.012, 0.005, ahead=True)
    assert controller.choose(64) > before


def test_a_verifier_far_away_streams_and_a_near_one_does_not():
    far, near = (taught(way, 0.005, 0.0005, 7, sent_ahead=False, mode="auto") for way in (0.2, 0.0))
    assert far.decide(64)
    assert not near.decide(64)


def test_where_streaming_was_worse_than_it_promised_the_edge_drafts_again_and_looks_later():
    controller = taught(0.02, 0.005, 0.001, 6, mode="auto")
    assert controller.decide(64)
    for _ in range(20):
        controller.streamed(1, 0.05)
    assert not controller.decide(64)
    for _ in range(TRIED_AGAIN // 7 - 1):
        controller.answered(8, 6, 0.025, 0.005)
        assert not controller.decide(64)
    for _ in range(3):
        controller.answered(8, 6, 0.025, 0.005)
    assert controller.decide(64)


def test_a_mode_that_is_chosen_is_kept():
    assert not taught(0.2, 0.005, 0.0005, 7, mode="split").decide(64)
    assert taught(0.0, 0.005, 0.0005, 7, mode="stream").decide(64)
