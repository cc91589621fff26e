"""A probe: what the target thinks of a prompt is told before the request goes on, and the prompt is read once."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.decoding import Drafter, TokenTree, target_of
from ianvs_specdec.decoding.probe import Probe
from ianvs_specdec.errors import AbandonedError
from tests.support.requests import COUPLED, GREEDY, KINDS, PROMPTS, alone, engine_of, request_of, target_of_kind
from tests.support.tiny import tiny_model

LAYERS = (0, 1, -1)


@pytest.fixture(scope="module")
def target():
    return target_of(tiny_model())


def until_told(engine, request, probe):
    engine.add(request)
    while probe.states is None:
        engine.step()


@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_the_last_token_and_the_largest_of_the_prompt(kind):
    model, prompt = tiny_model(), PROMPTS[2]
    expected = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    target = target_of_kind(kind, model)
    probe = Probe(LAYERS)
    until_told(engine_of(target), request_of(target, prompt, probe=probe), probe)
    pooled = torch.stack([torch.cat((expected[i][0, -1], expected[i][0].amax(0))) for i in LAYERS])
    torch.testing.assert_close(probe.states, pooled, atol=1e-4, rtol=1e-4)


def test_a_prompt_in_pieces_has_the_same_states(target, monkeypatch):
    whole, parts = Probe(LAYERS), Probe(LAYERS)
    until_told(engine_of(target), request_of(target, PROMPTS[2], probe=whole), whole)
    monkeypatch.setattr(type(target), "prompt_rows", 8)
    until_told(engine_of(target), request_of(target, PROMPTS[2], probe=parts), parts)
    torch.testing.assert_close(parts.states, whole.states)


def test_a_drafter_that_begins_in_the_prompt_leaves_all_of_it_to_the_probe(target):
    states = []
    for drafter in (None, drafters.create("lookahead", {"start": "official"})):
        probe = Probe(LAYERS)
        until_told(engine_of(target), request_of(target, PROMPTS[2], drafter=drafter, probe=probe), probe)
        states.append(probe.states)
    torch.testing.assert_close(*states)


class Reader(Drafter):
    """Asks for hidden states of its own, and keeps how many it is given."""

    def __init__(self):
        self.given = []

    def prepare(self, target):
        return (1,)

    def begin(self, target, context, prefill):
        self.given.append([len(prefill.hidden), len(prefill.hidden[0])])

    def propose(self, context, budget):
        return TokenTree.chain(context.tokens[-1])

    def observe(self, observation):
        self.given.append([len(observation.output.hidden), len(observation.output.hidden[0])])


def test_a_drafter_is_given_its_own_states_only(target):
    engine, probe, reader = engine_of(target), Probe(LAYERS), Reader()
    until_told(engine, request_of(target, PROMPTS[2], drafter=reader, probe=probe), probe)
    probe.go_on()
    while engine.busy:
        engine.step()
    assert reader.given == [[1, len(PROMPTS[2])], *[[1, 1]] * (GREEDY.max_tokens - 2)]


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("method", ["autoregressive", "prompt_lookup", "lookahead", "recycling"])
def test_what_goes_on_writes_what_it_would_have_and_reads_no_prompt_again(target, method, sampling):
    prompt, probe, seen = PROMPTS[2], Probe(LAYERS), []
    engine = engine_of(target)
    drafter = drafters.create(method, {})
    request = request_of(target, prompt, sampling, drafter, probe=probe, on_tokens=seen.extend)
    until_told(engine, request, probe)
    engine.step()
    assert (engine.idle, engine.busy, seen, request.ended) == (True, True, [], False)
    assert not request.unread
    probe.go_on()
    assert not engine.idle
    while engine.busy:
        engine.step()
        assert not request.unread
    assert request.result().token_ids == seen == alone(target, prompt, sampling)


def test_others_do_not_wait_for_a_decision(target):
    engine, probe = engine_of(target), Probe(LAYERS)
    held, near = request_of(target, PROMPTS[0], probe=probe), request_of(target, PROMPTS[2])
    until_told(engine, held, probe)
    engine.add(near)
    while not near.ended:
        assert not engine.idle
        engine.step()
    assert near.result().token_ids == alone(target, PROMPTS[2])
    assert (engine.idle, engine.busy, held.ended) == (True, True, False)


def test_a_request_that_is_dropped_holds_nothing(target):
    engine, told = engine_of(target), []
    probe = Probe(LAYERS, lambda: told.append(1))
    request = request_of(target, PROMPTS[2], probe=probe)
    until_told(engine, request, probe)
    assert told == [1]
    request.cancel()
    assert not engine.idle
    assert engine.step() == [request]
    assert not engine.busy
    with pytest.raises(AbandonedError):
        request.result()
