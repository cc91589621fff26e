"""Slices that a verifier does not compute: each is refused, and ends its own stream only."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import INVALID, PROMPT, TREE, Cut, Draft, Open, Rows, Slice, Up
from ianvs_specdec.net.split.wire import set_sampling
from tests.support.split_client import clients

HIDDEN = 32
BEGINS = Open()
set_sampling(BEGINS, Sampling())
CUT = Up(cut=Cut(layer=1))


def part(rows=1, **fields):
    return Rows(more=rows - 1, **{"begins": BEGINS, "kind": PROMPT, **fields})


def sent(*parts, rows=None):
    count = sum(each.more + 1 for each in parts) if rows is None else rows
    return Up(slice=Slice(rows=parts, states=bytes(int(count * HIDDEN * 4))))


WRONG = {
    "no layer for the edge": [Up(cut=Cut(layer=0))],
    "no layer for the verifier": [Up(cut=Cut(layer=2))],
    "an unknown format": [Up(cut=Cut(layer=1, states=9))],
    "a draft": [CUT, Up(draft=Draft(tokens=[5]))],
    "half a hidden state": [CUT, sent(part(), rows=0.5)],
    "a row without a hidden state": [CUT, sent(part(2), rows=1)],
    "an answer that has not begun": [CUT, sent(Rows(answer=3, kind=PROMPT))],
    "an answer twice": [CUT, sent(part(), Rows(kind=PROMPT))],
    "no tree": [CUT, sent(part(3, kind=TREE, up=[1, 9]))],
    "a tree that is too large": [CUT, sent(part(100, kind=TREE))],
    "a path that is none": [CUT, sent(part(3, kind=TREE, up=[1, 2])), sent(Rows(path=[1, 2], kind=TREE))],
    "more than the window": [CUT, *[sent(part(400)), sent(Rows(more=399, kind=PROMPT))]],
    "no sampling": [CUT, sent(part(begins=Open(max_tokens=4, temperature=-1.0, seed="0")))],
}


@pytest.fixture
def client(verifier):
    with clients(verifier) as made:
        yield made


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_computed_is_refused(what, client):
    good = client().say(CUT, sent(part(2)))
    assert good.hear().HasField("opened")
    assert len(good.hear().chosen.tokens) == 1
    assert client().say(*WRONG[what]).error() == INVALID
    tree = Rows(more=1, kind=TREE)
    assert len(good.say(sent(tree)).hear().chosen.tokens) == 2
