"""Invalid messages end only the stream of their client."""

from __future__ import annotations

import threading

import grpc
import pytest

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.session import Outage
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import FAILED, INVALID, UNAUTHENTICATED, Draft, Up
from ianvs_specdec.serving.verifier.service import MAX_STOPS, Limits
from ianvs_specdec.serving.verifier.session import Session
from tests.net.split.conftest import PROMPT
from tests.support.split_client import TOKENS, clients, opening
from tests.support.verifiers import PATIENCE, edge_of, verifying

BOUNDS = Limits(sessions=4, draft=8)


@pytest.fixture(scope="module")
def running(llm):
    with verifying(llm, limits=BOUNDS, tokens=TOKENS) as verifier:
        yield verifier


@pytest.fixture
def client(running):
    with clients(running) as new:
        yield new


GARBAGE = b"\xff\xff\xff no message at all"
FIRST = {
    "garbage": (GARBAGE, INVALID),
    "nothing": (Up(), INVALID),
    "a draft before a session": (Up(draft=Draft(tokens=[3])), INVALID),
    "a prompt beyond the window": (opening(prompt=[5] * 600), INVALID),
    "tokens that there are not": (opening(prompt=[5, 1 << 31]), INVALID),
    "a temperature below zero": (opening(temperature=-1.0), INVALID),
    "a seed without an end": (opening(seed="1" * 5000), INVALID),
    "a stop string too many": (opening(stop=["x"] * (MAX_STOPS + 1)), INVALID),
    "a mode of another version": (opening(mode=9), INVALID),
}


@pytest.mark.parametrize("what", FIRST)
def test_invalid_first_messages(client, what):
    message, code = FIRST[what]
    assert client().say(message).error() == code


LATER = {
    "garbage": [GARBAGE],
    "a second opening": [opening()],
    "parents that make no tree": [Up(draft=Draft(tokens=[3, 4], up=[1, 7]))],
    "tokens that there are not": [Up(draft=Draft(tokens=[1 << 30]))],
}


@pytest.mark.parametrize("what", LATER)
def test_invalid_message_ends_only_its_session(folder, running, client, alone, what):
    bad = client().say(opening())
    assert bad.hear().HasField("opened")
    assert len(bad.hear().tokens.tokens) == 1
    started, answers = threading.Event(), []

    def other():
        with edge_of(Access(running.address, TOKENS[1]), folder, length=2) as edge:
            tell = lambda tokens: started.set()  # noqa: E731
            answers.append(edge.decode(PROMPT, Sampling(max_tokens=100), on_tokens=tell).token_ids)

    thread = threading.Thread(target=other)
    thread.start()
    assert started.wait(PATIENCE)
    assert bad.say(*LATER[what]).error() == INVALID
    thread.join(PATIENCE)
    assert answers == [alone(PROMPT, Sampling(max_tokens=100))]


def test_too_long_message(running, client):
    with pytest.raises(grpc.RpcError) as refused:
        client().say(opening(prompt=[5] * 1_000_000)).hear()
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("token", ["", "a token that nobody gave out"])
def test_wrong_token(running, client, token):
    assert client(token).say(opening()).error() == UNAUTHENTICATED
    connection = Connection(Access(running.address, token))
    with pytest.raises(UserError, match="does not know this token"):
        connection.describe(PATIENCE)
    connection.close()


def test_refusal_is_one_error(folder, running):
    with (
        edge_of(Access(running.address, TOKENS[0]), folder, outage=Outage("fail", 1.0)) as edge,
        pytest.raises(AnswerError, match="the verifier refuses: the prompt has 600 tokens, the model's context window"),
    ):
        edge.decode([5] * 600, Sampling(max_tokens=9))


def test_internal_error_ends_only_its_session(folder, running, client, alone, monkeypatch, caplog):
    def broken(self, *arguments):
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(Session, "_send", broken)
    assert client().say(opening()).error() == FAILED
    assert "nobody thought of this" in caplog.text
    monkeypatch.undo()
    with edge_of(Access(running.address, TOKENS[1]), folder, length=2) as edge:
        assert edge.decode(PROMPT, Sampling(max_tokens=9)).token_ids == alone(PROMPT, Sampling(max_tokens=9))
