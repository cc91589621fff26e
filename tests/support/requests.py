"""Requests for an engine over a tiny model, and what each of them writes alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Target, decode
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.request import Request
from ianvs_specdec.targets.fused import FusedTarget
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.target import NativeTarget
from tests.support.tiny import VOCABULARY

RNG = random.Random(0)
PROMPTS = [[RNG.randrange(3, VOCABULARY) for _ in range(tokens)] for tokens in (8, 1, 33, 9, 21)]
GREEDY, COUPLED = Sampling(max_tokens=12), Sampling(max_tokens=12, temperature=0.9, top_p=0.9)
KINDS = {"native": NativeTarget, "fused": FusedTarget, "transformers": HuggingFaceTarget}


def target_of_kind(kind: str, model: Any) -> Target:
    """One of ``KINDS`` for ``model``; skips the test where it was not built."""
    if kind == "native" and library.unavailable_reason() is not None:
        pytest.skip(library.unavailable_reason())
    target = KINDS[kind](model)
    assert target.kind == kind
    return target


def engine_of(target, length="fixed:4", **limits):
    return Engine(target, lengths.create(length), **limits)


def request_of(target, prompt, sampling=GREEDY, drafter=None, **settings):
    settings = {"eos_ids": [], "rule": "rejection" if sampling.greedy else "coupled", **settings}
    return Request(target, drafter or drafters.create("prompt_lookup"), prompt, sampling, **settings)


def decoded(target, drafter, length, prompt, sampling, **settings):
    """One request's result, with a length by its name and no tokens that end it but those given."""
    length = lengths.create(length) if isinstance(length, str) else length
    return decode(target, drafter, length, prompt, sampling, **{"eos_ids": [], **settings})


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


def results(engine, *requests):
    """What came of each, in the order in which they were given."""
    run(engine, *requests)
    return [request.result() for request in requests]
