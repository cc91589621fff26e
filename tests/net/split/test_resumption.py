"""One message opens an answer behind what was confirmed of it."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Connection
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import STREAM, Draft, Up
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening
from tests.support.verifiers import Breaking, edge_of


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


def test_budget_and_time_are_sent_when_they_change(client, whole):
    client.say(opening()).hear()
    client.hear()
    verdict = client.say(Up(draft=Draft(tokens=whole[1:4]))).hear().verdict
    assert verdict.budget > 0
    assert client.say(Up(draft=Draft(tokens=whole[5:8]))).hear().verdict.budget == 0


def test_a_break_costs_one_stream_with_one_first_message(folder, verifier, alone, monkeypatch):
    way, streams, done = Breaking(verifier.port), [], []
    stream = Connection.stream

    def recorded(self):
        made, said = stream(self), []
        send = made.send
        made.send = lambda message: said.append(message.WhichOneof("message")) or send(message)
        streams.append(said)
        return made

    monkeypatch.setattr(Connection, "stream", recorded)

    def cut(tokens):
        done.extend(tokens)
        if len(done) == len(tokens):
            way.cut()

    with edge_of(way.address, drafters.create("draft_model", {"draft": folder})) as edge:
        answer = edge.decode(PROMPT, Sampling(max_tokens=20), on_tokens=cut)
    way.close()
    assert answer.token_ids == done == alone(PROMPT, Sampling(max_tokens=20))
    assert [said[0] for said in streams] == ["open", "open"]
    assert answer.split.breaks == 1
