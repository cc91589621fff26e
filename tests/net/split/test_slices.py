"""Invalid slices end only their stream; limits of slices."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import torch

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import BUSY, IDLE, INT8, INVALID, PROMPT, TREE, Cut, Draft, Open, Rows, Slice, Up
from ianvs_specdec.net.split.wire import write_sampling
from ianvs_specdec.serving.verifier.service import Limits
from ianvs_specdec.serving.verifier.slices import MAX_PENDING
from ianvs_specdec.targets.native.layer_range import LayerRange
from ianvs_specdec.targets.native.target import NativeTarget, numerics
from tests.support.split_client import clients
from tests.support.verifiers import PATIENCE, verifying

HIDDEN = 32
BEGINS = Open()
write_sampling(BEGINS, Sampling())
NUMERICS = numerics(torch.float32)
CUT = Up(cut=Cut(layer=1, numerics=NUMERICS))


def part(rows=1, **fields):
    return Rows(more=rows - 1, **{"begins": BEGINS, "kind": PROMPT, **fields})


def sent(*parts, rows=None):
    count = sum(each.more + 1 for each in parts) if rows is None else rows
    return Up(slice=Slice(rows=parts, states=bytes(int(count * HIDDEN * 4))))


WRONG = {
    "other numerics": [Up(cut=Cut(layer=1, numerics=numerics(torch.bfloat16)))],
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
    "a path beyond any tree": [CUT, sent(part(3, kind=TREE)), sent(Rows(path=[1 << 31], kind=TREE))],
    "more rows than a step has": [
        Up(cut=Cut(layer=1, numerics=NUMERICS, states=INT8)),
        Up(slice=Slice(rows=[part(5000)], states=bytes(5000 * (HIDDEN + 4)))),
    ],
    "more answers than a step has": [CUT, sent(*[part(answer=number) for number in range(65)])],
    "more ends than answers": [CUT, Up(slice=Slice(ended=[5] * 2000))],
    "more than the window": [CUT, *[sent(part(400)), sent(Rows(more=399, kind=PROMPT))]],
    "no sampling": [CUT, sent(part(begins=Open(max_tokens=4, temperature=-1.0, seed="0")))],
}


@pytest.fixture
def client(verifier):
    with clients(verifier) as made:
        yield made


@pytest.mark.parametrize("what", WRONG)
def test_invalid_slices(what, client):
    good = client().say(CUT, sent(part(2)))
    assert good.hear().HasField("opened")
    assert len(good.hear().chosen.tokens) == 1
    assert client().say(*WRONG[what]).error() == INVALID
    tree = Rows(more=1, kind=TREE)
    assert len(good.say(sent(tree)).hear().chosen.tokens) == 2


def test_pending_slices_and_steps_are_limited(client, verifier, monkeypatch):
    slices = verifier.service._slices
    steps, step, gate = [], LayerRange.step, threading.Event()
    monkeypatch.setattr(LayerRange, "step", lambda self, rows, given: steps.append(rows) or step(self, rows, given))
    slices._pool.submit(gate.wait)
    edges = [client().say(CUT, *[sent(*[part(answer=number) for number in range(40)])]) for _ in range(2)]
    flood = client().say(CUT, *[Up(slice=Slice(ended=[1]))] * 50)
    for each in (*edges, flood):
        assert each.hear().HasField("opened")
    deadline = time.monotonic() + PATIENCE
    while len(slices._waiting) < MAX_PENDING + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    waiting = len(slices._waiting)
    gate.set()
    assert waiting == MAX_PENDING + 3
    for each in edges:
        assert len(each.hear().chosen.tokens) == 40
    assert max(map(len, steps)) == 40


def test_failed_shared_step_is_repeated_one_by_one(client, verifier, monkeypatch):
    step, gate, failed = LayerRange.step, threading.Event(), []

    def fails_together(self, rows, given):
        if len(rows) > 1:
            failed.append(rows)
            raise RuntimeError
        return step(self, rows, given)

    monkeypatch.setattr(LayerRange, "step", fails_together)
    verifier.service._slices._pool.submit(gate.wait)
    edges = [client().say(CUT, sent(part(2))) for _ in range(2)]
    for each in edges:
        assert each.hear().HasField("opened")
    deadline = time.monotonic() + PATIENCE
    while len(verifier.service._slices._waiting) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    gate.set()
    for each in edges:
        assert len(each.hear().chosen.tokens) == 1
    assert failed


def test_idle_and_memory_limits_of_slices(llm, monkeypatch):
    with verifying(llm, limits=Limits(idle=0.2)) as verifier, clients(verifier) as made:
        assert made().say(CUT).error() == IDLE
        assert made().say(CUT, sent(part(2))).error() == IDLE
        verifier.service._slices.memory = 0
        assert made().say(CUT, sent(part(2))).error() == BUSY


def test_layer_is_timed_on_computing_thread(verifier, monkeypatch):
    timed = []
    monkeypatch.setattr(NativeTarget, "layer_seconds", lambda _: timed.append(threading.current_thread().name) or 1e-3)
    with contextlib.closing(Connection(Access(verifier.address))) as connection:
        assert connection.describe(PATIENCE, timed=True).layer == 1_000_000
    assert timed[0].startswith("slices")
