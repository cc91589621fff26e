"""Broken streams and stopped verifiers: no token is lost, doubled or changed."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.session import Outage, Session
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling, Trace
from ianvs_specdec.engine import Decoded
from ianvs_specdec.net.split.split_pb2 import STREAM, Draft, Open, Up
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening
from tests.support.verifiers import PATIENCE, Breaking, Verifier, edge_of, loaded

GREEDY = Sampling(max_tokens=60)
DRAWN = Sampling(max_tokens=60, temperature=0.8, seed=7)


@pytest.fixture
def way(verifier):
    relay = Breaking(verifier.port)
    yield relay
    relay.close()


def gone(way):
    way.close()
    way.cut()


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_broken_stream_resumes(folder, verifier, way, alone, sampling, in_flight):
    dice, seen = random.Random(in_flight), []

    def cut(tokens):
        seen.extend(tokens)
        if dice.random() < 0.5:
            way.cut()

    with edge_of(way.address, folder, in_flight=in_flight) as edge:
        answer = edge.decode(PROMPT, sampling, on_tokens=cut)
    assert answer.token_ids == seen == alone(PROMPT, sampling)
    assert answer.split.breaks >= 2
    # Of a session that was opened anew it is not known what it took.
    assert (answer.split.prefill, answer.split.work) == (None, None)
    assert verifier.sample("sessions_opened_total") == 1 + answer.split.breaks


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_restarted_verifier_resumes(folder, llm, alone, sampling):
    started = [Verifier(llm)]
    way = Breaking(started[0].port)
    seen = []

    def restart(tokens):
        seen.extend(tokens)
        if len(started) == 1 and len(seen) > 20:
            way.cut()
            started[0].stop()
            started.append(Verifier(llm))
            way.target = started[1].port

    try:
        with edge_of(way.address, folder) as edge:
            answer = edge.decode(PROMPT, sampling, on_tokens=restart)
    finally:
        started[-1].stop()
        way.close()
    assert answer.token_ids == seen == alone(PROMPT, sampling)
    assert started[1].sample("sessions_opened_total") == 1


def test_verifier_with_another_model_is_an_error(folder, wrong, llm):
    first = Verifier(llm)
    way = Breaking(first.port)
    other = loaded(wrong)
    second = Verifier(other)

    def change(tokens):
        way.cut()
        way.target = second.port

    try:
        with edge_of(way.address, folder) as edge, pytest.raises(AnswerError, match="another model"):
            edge.decode(PROMPT, GREEDY, on_tokens=change)
    finally:
        first.stop()
        second.stop()
        other.close()
        way.close()


def test_outage_policy_fail(folder, verifier, way):
    with (
        edge_of(way.address, folder, outage=Outage("fail", 0.1)) as edge,
        pytest.raises(AnswerError, match=r"no verifier for 0\.1 s"),
    ):
        edge.decode(PROMPT, GREEDY, on_tokens=lambda tokens: gone(way))


def test_outage_policy_edge(folder, verifier, way, alone):
    whole = alone(PROMPT, GREEDY)

    def finish(tokens, sampling):
        assert tokens[: len(PROMPT)] == PROMPT
        return Decoded([7] * sampling.max_tokens, "length", Trace())

    with edge_of(way.address, folder, outage=Outage("edge", 0.1), finish=finish) as edge:
        answer = edge.decode(PROMPT, GREEDY, on_tokens=lambda tokens: gone(way))
    assert answer.split.alone
    assert answer.outage_reason
    assert len(answer.token_ids) == 60
    assert answer.token_ids[: 60 - answer.split.alone] == whole[: 60 - answer.split.alone]
    assert answer.token_ids[60 - answer.split.alone :] == [7] * answer.split.alone


@pytest.fixture
def client(verifier):
    stream = Client(verifier.address)
    yield stream
    stream.close()


@pytest.fixture
def whole(alone):
    return alone(PROMPT, Sampling(max_tokens=200))


@pytest.mark.parametrize("confirmed", [60, 199])
def test_open_with_output_continues_it(client, whole, confirmed):
    client.say(opening(output=whole[:confirmed], mode=STREAM)).hear()
    heard = []
    while not (message := client.hear()).HasField("end"):
        heard += message.tokens.tokens
    assert heard == whole[confirmed:]


def test_drafts_continue_output(client, whole):
    client.say(opening(output=whole[:9])).hear()
    assert list(client.hear().tokens.tokens) == whole[9:10]
    verdict = client.say(Up(draft=Draft(tokens=whole[10:13]))).hear().verdict
    assert (verdict.node, verdict.token) == (3, whole[13])


@pytest.mark.parametrize(("last", "most", "reason"), [(9, 3, "length"), (1, 60, "stop")])
def test_complete_output_is_not_opened_again(verifier, last, most, reason):
    """A stream may break before the verifier's word that the answer has ended."""
    connection = Connection(Access(verifier.address))
    model = connection.describe(PATIENCE)
    assert 1 in model.ends
    session = Session(connection, model, Open(prompt=PROMPT, output=[7, 8, last], max_tokens=most), Outage())
    connection.close()
    assert (session.end.finish_reason, session.opened) == (reason, 0)


def test_output_that_fills_the_window_is_complete(verifier):
    connection = Connection(Access(verifier.address))
    model = connection.describe(PATIENCE)
    output = [7] * (model.window - len(PROMPT))
    session = Session(connection, model, Open(prompt=PROMPT, output=output, max_tokens=len(output) + 1), Outage())
    connection.close()
    assert (session.end.finish_reason, session.opened) == ("length", 0)


def test_the_time_of_a_step_has_the_unit_of_the_end(client):
    client.say(opening(mode=STREAM, max_tokens=1)).hear()
    tokens, end = client.hear().tokens, client.hear().end
    assert tokens.tenths == end.prefill > 0
