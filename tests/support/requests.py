"""Requests for an engine over a tiny model, and what each of them writes alone."""

from __future__ import annotations

import random

from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import HuggingFaceTarget, decode, target_of
from ianvs_specdec.decoding.request import Request
from ianvs_specdec.types import Sampling
from tests.support.tiny import VOCABULARY

RNG = random.Random(0)
PROMPTS = [[RNG.randrange(3, VOCABULARY) for _ in range(tokens)] for tokens in (8, 1, 33, 9, 21)]
GREEDY, COUPLED = Sampling(max_tokens=12), Sampling(max_tokens=12, temperature=0.9, top_p=0.9)
KINDS = {"fused": target_of, "transformers": HuggingFaceTarget}


def request_of(target, prompt, sampling=GREEDY, drafter=None, length="fixed:4", **settings):
    settings = {"eos_ids": [], "rule": "rejection" if sampling.greedy else "coupled", **settings}
    return Request(
        target, drafter or drafters.create("prompt_lookup"), lengths.create(length), prompt, sampling, **settings
    )


def alone(target, prompt, sampling=GREEDY):
    plain, zero = drafters.create("autoregressive"), lengths.create("fixed:0")
    return decode(target, plain, zero, prompt, sampling, eos_ids=[], rule="coupled").token_ids


def run(engine, *requests):
    """All that are over, in the order in which they ended."""
    for request in requests:
        engine.add(request)
    over = []
    while engine.busy:
        over += engine.step()
    return over
