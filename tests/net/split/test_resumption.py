"""One message opens an answer behind what was confirmed of it."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import STREAM, Draft, Up
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening


@pytest.fixture
def client(verifier):
    stream = Client(verifier.address)
    yield stream
    stream.close()


@pytest.fixture
def whole(alone):
    return alone(PROMPT, Sampling(max_tokens=200))


@pytest.mark.parametrize("confirmed", [1, 60, 199])
def test_an_opening_with_output_goes_on_behind_it(client, whole, confirmed):
    client.say(opening(output=whole[:confirmed], mode=STREAM)).hear()
    heard = []
    while not (message := client.hear()).HasField("end"):
        heard += message.tokens.tokens
    assert heard == whole[confirmed:]


def test_drafts_go_on_behind_output(client, whole):
    client.say(opening(output=whole[:9])).hear()
    assert list(client.hear().tokens.tokens) == whole[9:10]
    verdict = client.say(Up(draft=Draft(tokens=whole[10:13]))).hear().verdict
    assert (verdict.node, verdict.token) == (3, whole[13])
