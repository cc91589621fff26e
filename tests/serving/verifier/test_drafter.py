"""Drafts of an edge: which is verified next, which are rejected."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.net.split import MAX_IN_FLIGHT
from ianvs_specdec.net.split.split_pb2 import Draft
from ianvs_specdec.serving.verifier.session import RemoteDrafter


@pytest.fixture
def drafter():
    remote = RemoteDrafter(8)
    assert remote.judged([5]) is None
    return remote


def test_early_draft_is_rejected(drafter):
    assert drafter.offer(Draft(tokens=[7]))
    for early in (drafter, RemoteDrafter(8)):
        with pytest.raises(ValueError, match="before the answer"):
            early.offer(Draft(tokens=[7]))


def test_draft_sent_ahead_follows_a_right_guess(drafter):
    assert drafter.offer(Draft(tokens=[7, 8]))
    assert not drafter.offer(Draft(guess=10, tokens=[1]))
    assert drafter.judged([7, 8, 9]) == 2
    assert drafter.ready
    assert drafter.propose(None, 8).tokens == [9, 1]


@pytest.mark.parametrize("outcome", [[7, 8, 3], [9]], ids=["another token", "rejected"])
def test_drafts_behind_another_outcome_are_skipped(drafter, outcome):
    drafter.offer(Draft(tokens=[7, 8]))
    drafter.offer(Draft(guess=10, tokens=[1]))
    drafter.judged(outcome)
    assert not drafter.ready
    assert not drafter.offer(Draft(guess=2 + 1, tokens=[4])), "it was sent behind the one that is void"
    assert drafter.offer(Draft(tokens=[6]))
    assert drafter.propose(None, 8).tokens == [outcome[-1], 6]


def test_late_draft_sent_ahead_is_verified_next(drafter):
    drafter.offer(Draft(tokens=[7, 8]))
    drafter.judged([7, 8, 9])
    assert drafter.offer(Draft(guess=10, tokens=[1]))


def test_number_of_waiting_drafts_is_limited(drafter):
    drafter.offer(Draft(tokens=[7]))
    for _ in range(MAX_IN_FLIGHT):
        drafter.offer(Draft(guess=10, tokens=[7]))
    with pytest.raises(ValueError, match=f"more than {MAX_IN_FLIGHT} drafts"):
        drafter.offer(Draft(guess=10, tokens=[7]))


def test_draft_is_cut_to_the_speculation_length(drafter):
    drafter.offer(Draft(tokens=[7, 8, 9], up=[1, 2, 1]))
    assert drafter.propose(None, 2).parents == [-1, 0, 0]
    assert drafter.budget == 2
    assert drafter.judged([8, 3]) == 2
