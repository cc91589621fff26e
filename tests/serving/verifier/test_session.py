"""What a session sends its client, and what it does not send twice."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.serving.verifier.session import Emitted, Outbox, Session


def test_the_time_of_a_step_is_sent_again_where_it_has_changed_by_half():
    async def sent(seconds):
        outbox = Outbox()
        session = Session(outbox, None, Mock(), 60.0, Mock())
        tenths = []
        for each in seconds:
            session._emitted(Emitted([5], None, 0, each))
            tenths.append(outbox.waiting.popleft().tokens.tenths)
        return tenths

    assert asyncio.run(sent([0.01, 0.014, 0.016, 0.012, 0.01, 0.01])) == [100, 0, 160, 0, 100, 0]
