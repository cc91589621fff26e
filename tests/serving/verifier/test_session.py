"""What a session tells its client, and what it does not tell twice."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.drafters.autoregressive import Autoregressive
from ianvs_specdec.net.split.split_pb2 import STREAM
from ianvs_specdec.serving.verifier.drafter import Emitted, FarDrafter
from ianvs_specdec.serving.verifier.session import Session, Stream


def test_the_time_of_a_step_is_told_again_where_it_has_grown_or_shrunk_by_half():
    async def told(seconds):
        session = Session(b"", FarDrafter(Autoregressive(), STREAM, 8, 2), 8, lambda: None, [], lambda emitted: None)
        tenths = []
        for each in seconds:
            session.attach(stream := Stream.new())
            session._emitted(Emitted([5], None, None, each))
            (message,) = stream.waiting
            tenths.append(message.tokens.tenths)
        return tenths

    assert asyncio.run(told([0.01, 0.014, 0.016, 0.012, 0.01, 0.01])) == [100, 0, 160, 0, 100, 0]
