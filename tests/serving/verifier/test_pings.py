"""How far away the verifier is, is answered at once, and once at a time."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.net.split.split_pb2 import INVALID
from ianvs_specdec.serving.verifier.service import answer_ping
from ianvs_specdec.serving.verifier.session import Refused, Stream


def test_a_ping_is_answered_whatever_else_waits_to_be_written():
    stream = Stream.new()
    answer_ping(stream)
    assert [told.WhichOneof("message") for told in stream.waiting] == ["pong"]


def test_a_client_that_pings_on_without_reading_is_refused():
    stream = Stream.new()
    answer_ping(stream)
    with pytest.raises(Refused, match="ping") as refused:
        answer_ping(stream)
    assert refused.value.code == INVALID
    assert len(stream.waiting) == 1
