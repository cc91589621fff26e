"""Hidden states of a prompt, pooled, as an engine's request of one token reads them beside others."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.encoding import PromptEncoder
from ianvs_specdec.targets.registry import target_of
from tests.support.requests import KINDS, PROMPTS, alone, engine_of, request_of, results, target_of_kind
from tests.support.tiny import tiny_model

LAYERS = (0, 1, -1)
ONE = Sampling(max_tokens=1)


def encoded(target, prompt=PROMPTS[2], **limits):
    encoder = PromptEncoder(LAYERS)
    (read,) = results(engine_of(target, **limits), request_of(target, prompt, ONE, encoder))
    assert len(read.token_ids) == 1
    return encoder.states


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_of_the_last_token_and_the_largest(kind):
    model, prompt = tiny_model(), PROMPTS[2]
    expected = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    pooled = torch.stack([torch.cat((expected[i][0, -1], expected[i][0].amax(0))) for i in LAYERS])
    torch.testing.assert_close(encoded(target_of_kind(kind, model)), pooled, atol=1e-4, rtol=1e-4)


def test_a_prompt_in_pieces_has_the_same_states(monkeypatch):
    target = target_of(tiny_model())
    whole = encoded(target)
    monkeypatch.setattr(type(target), "prompt_rows", 8)
    torch.testing.assert_close(encoded(target), whole)


def test_others_write_what_they_write_alone():
    target, encoder = target_of(tiny_model()), PromptEncoder(LAYERS)
    one, _ = results(engine_of(target), request_of(target, PROMPTS[0]), request_of(target, PROMPTS[2], ONE, encoder))
    assert one.token_ids == alone(target, PROMPTS[0])
    torch.testing.assert_close(encoder.states, encoded(target))
