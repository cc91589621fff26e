"""The length that brings the most tokens per second, and the mode."""

from __future__ import annotations

import pytest

from ianvs_specdec.backends.split.edge.controller import LONGEST, TRIED, WORTH_SENDING, Controller
from ianvs_specdec.net.split.breakeven import round_seconds, round_tokens


def measured(way, service, draft, accepted, kept=False, **options):
    """After many rounds of 8 drafted tokens, of which ``accepted`` were right, with these seconds."""
    controller = Controller(**options)
    for _ in range(100):
        controller.drafted(8, 8 * draft)
        controller.served(service)
        controller.answered(8, accepted)
        controller.travelled(way)
        controller.missed(kept)
    return controller


def test_a_fixed_length_is_kept_within_the_budget():
    controller = Controller(5)
    assert (controller.choose(64), controller.choose(3)) == (5, 3)


def test_the_further_away_the_verifier_is_the_longer_drafts_are():
    near, far = (measured(way, 0.005, 0.002, 6) for way in (0.0, 0.2))
    assert near.choose(64) < far.choose(64) <= LONGEST


def test_the_more_is_accepted_the_longer_drafts_are():
    poor, good = (measured(0.02, 0.005, 0.002, accepted) for accepted in (1, 7))
    assert poor.choose(64) < good.choose(64)


def test_without_anything_accepted_nothing_is_drafted_that_takes_long():
    assert measured(0.0, 0.005, 0.1, 0).choose(64) == 0


def test_outcomes_that_are_drafted_for_make_longer_drafts_cheap():
    rates = [measured(0.02, 0.005, 0.002, 6, kept, in_flight=4).rate(8) for kept in (False, True)]
    assert rates[1] > rates[0]


@pytest.mark.parametrize(("accepted", "sent"), [(2, 1), (7, 3)])
def test_only_drafts_that_are_worth_sending_are_counted_on(accepted, sent):
    controller = measured(0.2, 0.005, 0.001, accepted, in_flight=8)
    acceptance = controller.acceptance
    assert acceptance ** (4 * sent) < WORTH_SENDING
    seconds = round_seconds(3, acceptance, way=0.2, service=0.005, draft=0.001, in_flight=sent)
    assert controller.rate(3) == pytest.approx(round_tokens(3, acceptance) / seconds, rel=0.05)


def test_a_draft_model_that_is_always_right_is_counted_on_for_ever():
    controller = Controller(in_flight=4)
    for _ in range(20_000):
        controller.answered(16, 16)
    assert controller.choose(64) == LONGEST


def test_a_mode_that_is_chosen_is_kept():
    assert not any(Controller(mode="split").begin() for _ in range(9))
    assert all(Controller(mode="stream").begin() for _ in range(9))


def answers(controller, count, split, stream, opening=0.02):
    """The modes of so many answers of 100 tokens, with these rates of both modes."""
    modes = []
    for _ in range(count):
        controller.opened(opening)
        streams = controller.begin()
        controller.served(0.005)
        controller.brought(streams, 100, 100 / (stream if streams else split))
        modes.append(streams)
    return modes


@pytest.mark.parametrize(("split", "stream"), [(200, 100), (100, 200)])
def test_the_mode_that_brought_more_is_taken_and_the_other_seldom_tried(split, stream):
    modes = answers(Controller(mode="auto"), 400, split, stream)
    assert modes[0], "streaming depends on no distance"
    slower = modes.count(split > stream)
    assert 2 <= slower <= 40


def test_where_the_round_trip_changes_drafting_is_tried_again():
    controller = Controller(mode="auto")
    assert all(answers(controller, 20, 50, 200, opening=0.3)[2:])
    assert not answers(controller, 1, 400, 200, opening=0.01)[-1] or not controller.begin()


def test_an_answer_that_drafting_makes_far_slower_is_streamed_on():
    controller = Controller(mode="auto")
    controller.brought(True, 100, 1.0)
    assert controller.gives_up(TRIED, TRIED / 40)
    assert not controller.gives_up(TRIED, TRIED / 60)
    assert not controller.gives_up(TRIED - 1, 9.0)


def test_several_outcomes_are_drafted_for_where_a_draft_takes_a_good_part_of_the_way():
    assert not Controller().keeps_several(4), "before anything is known"
    controller = measured(0.02, 0.01, 0.005, 6)
    assert controller.keeps_several(4)
    assert not controller.keeps_several(1)
