"""Thousands of sessions that there is no room for are refused one by one, and those that are there go on."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import BUSY, Down
from ianvs_specdec.net.split.wire import DECODE
from ianvs_specdec.serving.verifier.service import Bounds
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening
from tests.support.verifiers import PATIENCE, edge_of, verifying

TOKENS = ("a token of the first edge", "a token of another edge")
BOUNDS = Bounds(sessions=4)
AT_ONCE = 32
LONG = Sampling(max_tokens=200)


@pytest.mark.parametrize("opens", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_what_there_is_no_room_for_is_refused_and_the_others_go_on(folder, llm, alone, opens):
    expected = alone(PROMPT, LONG)
    with verifying(llm, bounds=BOUNDS, tokens=TOKENS) as running:
        started, answers = threading.Event(), []

        def go_on():
            drafter = drafters.create("draft_model", {"draft": folder})
            with edge_of(Access(running.address, TOKENS[0]), drafter, length=2) as edge:
                answers.append(edge.decode(PROMPT, LONG, on_tokens=lambda tokens: started.set()).token_ids)

        honest = threading.Thread(target=go_on)
        honest.start()
        assert started.wait(PATIENCE)
        held = [Client(running.address, TOKENS[1]).say(opening()) for _ in range(BOUNDS.sessions)]
        told = Counter(one.hear().WhichOneof("message") for one in held)
        refused = _flood(running.address, opens)
        # Either the verifier has no room, or the process takes no more streams.
        assert set(refused) <= {BUSY, "opened", grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert told["opened"] <= BOUNDS.sessions
        assert len(running.service.sessions) <= BOUNDS.sessions
        honest.join(PATIENCE)
        assert answers == [expected]
        for one in held:
            one.close()


def _flood(address, opens):
    """What so many openings were answered with."""
    message, metadata = opening().SerializeToString(), [("authorization", f"Bearer {TOKENS[1]}")]
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(AT_ONCE) as threads:
        call = channel.stream_stream(DECODE, request_serializer=bytes, response_deserializer=Down.FromString)

        def one(_):
            try:
                answer = next(call(iter([message]), metadata=metadata, timeout=PATIENCE))
            except grpc.RpcError as error:
                return error.code()
            return answer.error.code if answer.HasField("error") else answer.WhichOneof("message")

        return Counter(threads.map(one, range(opens)))
