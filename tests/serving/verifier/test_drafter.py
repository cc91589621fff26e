"""Drafts of an edge that come too early or are too many."""

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


def test_number_of_waiting_drafts_is_limited(drafter):
    drafter.offer(Draft(tokens=[7]))
    for _ in range(MAX_IN_FLIGHT):
        drafter.offer(Draft(guess=10, tokens=[7]))
    with pytest.raises(ValueError, match=f"more than {MAX_IN_FLIGHT} drafts"):
        drafter.offer(Draft(guess=10, tokens=[7]))
