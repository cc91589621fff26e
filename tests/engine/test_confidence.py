"""How sure the target was of each token: one triple per token, the same whatever drafted it, and no token changed."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import StopStrings, decode
from ianvs_specdec.engine.prompts import PromptEncoder
from ianvs_specdec.targets.registry import create_target
from tests.support import requests
from tests.support.drafters import CASES, DEEP, Workshop
from tests.support.requests import KINDS, alone, engine_of, request_of, results, target_of_kind
from tests.support.slow_cases import slow_unless
from tests.support.tiny import tiny_model

VOCABULARY = 16
RNG = random.Random(1)
PROMPTS = [[RNG.randrange(VOCABULARY) for _ in range(length)] for length in (2, 17)]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=14, logprobs=True),
    "penalised": Sampling(max_tokens=14, repetition_penalty=1.2, logprobs=True),
    "sampled": Sampling(max_tokens=14, temperature=0.9, top_p=0.9, top_k=6, seed=3, logprobs=True),
}
EVERY_SAMPLING = {"none", "prompt_lookup", "draft_model-tree"}
METHODS = slow_unless(
    itertools.product(sorted(set(CASES) - DEEP), SAMPLINGS),
    lambda case: case[1] == "sampled" or case[0] in EVERY_SAMPLING,
)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    model = tiny_model("llama", vocab_size=VOCABULARY)
    texts = [RNG.choices(range(VOCABULARY), k=40) for _ in range(6)]
    return Workshop(model, tmp_path_factory.mktemp("llama"), texts), create_target(model), model


def expected(model, prompt, ids):
    """From one forward over prompt and output, by the definitions."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    p = logits.double().softmax(-1)
    best = p.sort(descending=True).values
    chosen = p[torch.arange(len(ids)), torch.tensor(ids)].log()
    return torch.stack([chosen, -(p * p.log()).sum(-1), best[:, 0] - best[:, 1]], 1)


def text_of(ids):
    return "".join(chr(97 + i) for i in ids)


@pytest.mark.parametrize(("case", "settings"), METHODS)
def test_every_method_tells_what_the_model_says_of_its_tokens(workshop, case, settings) -> None:
    shop, target, model = workshop
    sampling = SAMPLINGS[settings]
    rule = "rejection" if sampling.greedy else "coupled"
    for prompt in PROMPTS:
        method = shop.create(case)
        said = decode(target, *method, prompt, sampling, eos_ids=(), rule=rule)
        plain = Sampling(**{**sampling.__dict__, "logprobs": False})
        without = decode(target, *shop.create(case), prompt, plain, eos_ids=(), rule=rule)
        assert said.token_ids == without.token_ids
        assert without.trace.confidence is None
        assert len(said.trace.confidence) == len(said.token_ids) == sampling.max_tokens
        told = torch.tensor(said.trace.confidence, dtype=torch.float64)
        assert torch.allclose(told, expected(model, prompt, said.token_ids), atol=2e-4)


@pytest.mark.parametrize(
    "cuts", slow_unless([[1, 5, 9, 17], range(1, 40)], lambda cuts: len(cuts) < 9), ids=["some", "all"]
)
def test_what_ends_in_the_middle_of_a_step_has_as_many_triples_as_tokens(workshop, cuts) -> None:
    _, target, _ = workshop
    drafter, length = drafters.create("prompt_lookup", {}), lengths.create("fixed:8")
    prompt = PROMPTS[1]
    free = decode(target, drafter, length, prompt, Sampling(max_tokens=40), eos_ids=())
    asked = Sampling(max_tokens=40, logprobs=True)
    seen = set()
    for cut in cuts:
        stop = StopStrings(text_of, [text_of(free.token_ids[:cut])[-6:]])
        ended = decode(target, drafter, length, prompt, asked, eos_ids=(), stop=stop)
        by_token = decode(target, drafter, length, prompt, asked, eos_ids={free.token_ids[cut]})
        for said in (ended, by_token):
            assert said.token_ids == free.token_ids[: len(said.token_ids)]
            assert len(said.trace.confidence) == len(said.token_ids)
            seen.add(bool(said.trace.steps) and said.trace.steps[-1].emitted < said.trace.steps[-1].accepted + 1)
    assert seen == {True, False}


LAYERS = (0, 1, -1)
ONE = Sampling(max_tokens=1)


def encoded(target, prompt=requests.PROMPTS[2], **limits):
    encoder = PromptEncoder(LAYERS)
    (read,) = results(engine_of(target, **limits), request_of(target, prompt, ONE, encoder))
    assert len(read.token_ids) == 1
    return encoder.states


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_of_the_last_token_and_the_largest(kind):
    model, prompt = tiny_model(), requests.PROMPTS[2]
    expected = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    pooled = torch.stack([torch.cat((expected[i][0, -1], expected[i][0].amax(0))) for i in LAYERS])
    torch.testing.assert_close(encoded(target_of_kind(kind, model)), pooled, atol=1e-4, rtol=1e-4)


def test_a_prompt_in_pieces_has_the_same_states(monkeypatch):
    target = create_target(tiny_model())
    whole = encoded(target)
    monkeypatch.setattr(type(target), "prompt_rows", 8)
    torch.testing.assert_close(encoded(target), whole)


def test_others_write_what_they_write_alone():
    target, encoder = create_target(tiny_model()), PromptEncoder(LAYERS)
    one, _ = results(
        engine_of(target),
        request_of(target, requests.PROMPTS[0]),
        request_of(target, requests.PROMPTS[2], ONE, encoder),
    )
    assert one.token_ids == alone(target, requests.PROMPTS[0])
    torch.testing.assert_close(encoder.states, encoded(target))
