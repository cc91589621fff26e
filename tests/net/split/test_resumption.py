"""One message resumes a session where the verifier has it, and otherwise opens one behind the output."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Connection
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import IDLE, INVALID, STREAM, Draft, Up
from ianvs_specdec.serving.verifier.service import Bounds
from ianvs_specdec.serving.verifier.session import Refused
from tests.net.split.conftest import PROMPT
from tests.support.split_client import TOKENS, clients, opening
from tests.support.verifiers import Breaking, edge_of, verifying


@pytest.fixture(scope="module")
def running(llm):
    with verifying(llm, bounds=Bounds(sessions=8), tokens=TOKENS) as verifier:
        yield verifier


@pytest.fixture
def client(running):
    with clients(running) as new:
        yield new


@pytest.fixture
def begun(client):
    """A session, and the one token that came of its prompt."""
    stream = client().say(opening())
    return stream.hear().opened.session, list(stream.hear().tokens.tokens)


@pytest.fixture
def whole(alone):
    return alone(PROMPT, Sampling(max_tokens=200))


def test_an_opening_that_names_a_session_resumes_it(running, client, begun):
    session, first = begun
    before = running.sample("sessions_opened_total")
    assert list(client().say(opening(session=session)).hear().tokens.tokens) == first
    assert running.sample("sessions_opened_total") == before


def test_a_draft_behind_it_is_verified_without_waiting(client, begun, whole):
    session, first = begun
    draft = Up(draft=Draft(position=1, tokens=whole[1:4]))
    stream = client().say(opening(session=session, output=first), draft)
    assert not stream.hear().tokens.tokens
    verdict = stream.hear().verdict
    assert (verdict.node, verdict.token) == (3, whole[4])


def test_what_the_edge_knows_of_the_verifier_is_told_again(client, begun, whole):
    """The stream that it was told on may have broken before."""
    session, first = begun
    stream = client().say(opening(session=session, output=first), Up(draft=Draft(position=1, tokens=whole[1:4])))
    stream.hear()
    verdict = stream.hear().verdict
    assert verdict.budget > 0
    assert verdict.tenths > 0
    stream.say(Up(draft=Draft(position=5, tokens=whole[5:8])))
    assert stream.hear().verdict.budget == 0, "on one stream it is told once"


def test_a_draft_behind_what_the_edge_lacks_is_passed_over(client, begun, whole):
    session, first = begun
    held = client().say(opening(session=session), Up(draft=Draft(position=1, tokens=whole[1:2])))
    held.hear()
    assert held.hear().verdict.token == whole[2]
    late = Up(draft=Draft(position=1, tokens=whole[1:4]))
    fits = Up(draft=Draft(position=3, tokens=[]))
    stream = client().say(opening(session=session, output=first), late, fits)
    assert list(stream.hear().tokens.tokens) == whole[1:3]
    assert stream.hear().verdict.token == whole[3]


def test_anothers_session_is_answered_as_one_that_never_was(client, begun):
    session, _ = begun
    told = []
    for named in (session, b"x" * len(session)):
        stream = client(TOKENS[1]).say(opening(session=named))
        opened, tokens = stream.hear(), stream.hear()
        assert opened.opened.session not in (b"", session)
        opened.opened.session = b""
        told.append((opened, list(tokens.tokens.tokens)))
    assert told[0] == told[1]
    assert list(client().say(opening(session=session)).hear().tokens.tokens), "its own client can still resume it"


def test_more_output_than_there_was_is_refused(client, begun):
    session, first = begun
    assert client().say(opening(session=session, output=first * 9)).error() == INVALID


def test_a_session_that_ended_in_silence_is_begun_anew(running, client, begun):
    session, first = begun
    [held] = running.service.sessions
    running._loop.call_soon_threadsafe(held.end, Refused(IDLE, "nothing came"))
    stream = client().say(opening(session=session, output=first))
    assert stream.hear().opened.session not in (b"", session)


def test_a_change_of_the_mode_that_got_lost_is_made_up_for(client, begun, whole):
    session, _ = begun
    stream = client().say(opening(session=session, mode=STREAM))
    heard = []
    while len(heard) < len(whole):
        heard += stream.hear().tokens.tokens
    assert heard == whole


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_break_costs_one_stream_with_one_first_message(folder, verifier, alone, monkeypatch, forgotten):
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
            if forgotten:
                verifier.forget()

    with edge_of(way.address, drafters.create("draft_model", {"draft": folder})) as edge:
        answer = edge.decode(PROMPT, Sampling(max_tokens=20), on_tokens=cut)
    way.close()
    assert answer.token_ids == done == alone(PROMPT, Sampling(max_tokens=20))
    assert len(streams) == 2
    assert [said[0] for said in streams] == ["open", "open"]
    assert answer.breaks == 1
