"""Streams break and verifiers end: no token is lost, doubled or changed, and the policy says what comes of it."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.session import Outage
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling
from tests.net.split.conftest import PROMPT
from tests.support.verifiers import Breaking, Verifier, edge_of, loaded

GREEDY = Sampling(max_tokens=60)
DRAWN = Sampling(max_tokens=60, temperature=0.8, seed=7)


@pytest.fixture
def way(verifier):
    relay = Breaking(verifier.port)
    yield relay
    relay.close()


def drafting(folder):
    return drafters.create("draft_model", {"draft": folder})


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_stream_that_breaks_is_resumed_where_it_was(folder, verifier, way, alone, sampling, in_flight):
    dice, seen = random.Random(in_flight), []

    def cut(tokens):
        seen.extend(tokens)
        if dice.random() < 0.5:
            way.cut()

    with edge_of(way.address, drafting(folder), in_flight=in_flight) as edge:
        answer = edge.decode(PROMPT, sampling, on_tokens=cut)
    assert answer.token_ids == seen == alone(PROMPT, sampling)
    assert answer.split.breaks >= 2
    assert verifier.sample("sessions_opened_total") == 1 + answer.split.breaks


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_where_the_verifier_was_started_anew_the_answer_goes_on(folder, llm, alone, sampling):
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
        with edge_of(way.address, drafting(folder)) as edge:
            answer = edge.decode(PROMPT, sampling, on_tokens=restart)
    finally:
        started[-1].stop()
        way.close()
    assert answer.token_ids == seen == alone(PROMPT, sampling)
    assert started[1].sample("sessions_opened_total") == 1


def test_a_verifier_with_another_model_is_not_gone_on_with(folder, wrong, llm):
    first = Verifier(llm)
    way = Breaking(first.port)
    other = loaded(wrong)
    second = Verifier(other)

    def change(tokens):
        way.cut()
        way.target = second.port

    try:
        with edge_of(way.address, drafting(folder)) as edge, pytest.raises(AnswerError, match="another model"):
            edge.decode(PROMPT, GREEDY, on_tokens=change)
    finally:
        first.stop()
        second.stop()
        other.close()
        way.close()


def test_the_policy_fail_tells_that_there_is_no_verifier(folder, verifier, way):
    def end(tokens):
        way.close()
        way.cut()

    with (
        edge_of(way.address, drafting(folder), outage=Outage("fail", 0.1)) as edge,
        pytest.raises(AnswerError, match=r"no verifier for 0\.1 s"),
    ):
        edge.decode(PROMPT, GREEDY, on_tokens=end)


def test_the_policy_edge_finishes_and_says_how_much_is_its_own(folder, verifier, way, alone):
    whole = alone(PROMPT, GREEDY)

    def end(tokens):
        way.close()
        way.cut()

    def finish(tokens, sampling):
        from ianvs_specdec.common.types import Trace
        from ianvs_specdec.engine import Decoded

        assert tokens[: len(PROMPT)] == PROMPT
        return Decoded([7] * sampling.max_tokens, "length", Trace())

    with edge_of(way.address, drafting(folder), outage=Outage("edge", 0.1), finish=finish) as edge:
        answer = edge.decode(PROMPT, GREEDY, on_tokens=end)
    assert answer.split.alone
    assert answer.why
    assert len(answer.token_ids) == 60
    assert answer.token_ids[: 60 - answer.split.alone] == whole[: 60 - answer.split.alone]
    assert answer.token_ids[60 - answer.split.alone :] == [7] * answer.split.alone
