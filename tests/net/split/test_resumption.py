"""One message opens an answer behind what was confirmed of it."""

from __future__ import annotations

import pytest

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.session import Outage, Session
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import STREAM, Draft, Open, Up
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening
from tests.support.verifiers import PATIENCE


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


@pytest.mark.parametrize(("last", "most", "reason"), [(9, 3, "length"), (1, 60, "stop")])
def test_an_output_that_is_whole_is_not_opened_again(verifier, last, most, reason):
    """A stream may break before the verifier's word that the answer has ended."""
    connection = Connection(Access(verifier.address))
    model = connection.describe(PATIENCE)
    assert 1 in model.ends
    session = Session(connection, model, Open(prompt=PROMPT, output=[7, 8, last], max_tokens=most), Outage())
    connection.close()
    assert (session.end.finish_reason, session.opened) == (reason, 0)
