"""Whose turn it is among the drafts of a session, and when."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.drafters.autoregressive import Autoregressive
from ianvs_specdec.net.split.split_pb2 import SPLIT, STREAM, Draft
from ianvs_specdec.serving.verifier.drafter import FarDrafter


def far(mode=SPLIT):
    drafter = FarDrafter(Autoregressive(), mode, 8, 2)
    if mode == SPLIT:
        drafter.emitted([5])
    return drafter


def test_a_draft_waits_until_the_prompt_is_read():
    drafter = FarDrafter(Autoregressive(), SPLIT, 8, 2)
    assert not drafter.offer(Draft(position=1, guess=6, tokens=[7]))
    assert not drafter.ready
    assert not drafter.waits
    drafter.emitted([5])
    assert drafter.ready


@pytest.mark.parametrize(
    ("draft", "turn"),
    [
        (Draft(position=1, tokens=[7]), True),
        (Draft(position=1), True),
        (Draft(position=1, guess=6, tokens=[7]), True),
        (Draft(position=1, guess=7, tokens=[7]), False),
        (Draft(position=0, tokens=[7]), False),
        (Draft(position=2, tokens=[7]), False),
    ],
)
def test_a_draft_has_its_turn_where_it_fits_what_was_confirmed(draft, turn):
    drafter = far()
    assert drafter.offer(draft) == turn == drafter.ready


def test_a_draft_sent_ahead_follows_at_once_where_its_guess_was_right():
    drafter = far()
    drafter.offer(Draft(position=1, tokens=[7, 8]))
    drafter.offer(Draft(position=4, guess=10, tokens=[1]))
    told = drafter.emitted([7, 8, 9])
    assert (told.node, told.budget) == (2, 0)
    assert drafter.ready
    assert drafter.propose(None, 8).tokens == [9, 1]


def test_no_more_than_so_many_drafts_wait():
    drafter = far()
    for _ in range(3):
        drafter.offer(Draft(position=1, tokens=[7]))
    with pytest.raises(ValueError, match="more than 2 drafts"):
        drafter.offer(Draft(position=1, tokens=[7]))


def test_a_draft_is_cut_to_what_the_length_grants():
    drafter = far()
    drafter.offer(Draft(position=1, tokens=[7, 8, 9], up=[1, 2, 1]))
    assert drafter.propose(None, 2).parents == [-1, 0, 0]
    assert drafter.emitted([8, 3]).node == 2


def test_the_mode_changes_between_steps_only():
    drafter = far()
    drafter.offer(Draft(position=1, tokens=[7]))
    assert not drafter.switch(STREAM)
    assert drafter.remote
    assert drafter.emitted([3]).node == 0
    assert (drafter.remote, drafter.ready) == (False, True)
    assert not drafter.switch(SPLIT)
    told = drafter.emitted([4])
    assert (told.node, told.switched) == (None, True)
    assert (drafter.remote, drafter.ready) == (True, False)
