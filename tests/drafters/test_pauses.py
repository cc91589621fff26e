"""Speculation that pauses: what is drafted afterwards is what a drafter drafts that never paused, and nothing is read
before it is needed."""

from __future__ import annotations

import copy
import itertools
import random

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.decoding import decode, target_of
from ianvs_specdec.decoding.loop import Engine
from ianvs_specdec.decoding.native import library
from ianvs_specdec.decoding.request import Request
from ianvs_specdec.types import Sampling
from tests.support.drafters import CASES, Workshop
from tests.support.few import few
from tests.support.pauses import BUDGET, EveryPosition, Switched, by_position
from tests.support.tiny import tiny_model

VOCABULARY = 16  # so few that even heads of random numbers are often right
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(VOCABULARY) for _ in range(length)] for length in (40, 9, 1, 23)]
LEARNS = {"lookahead", "lookahead-official", "recycling", "predicted_output"}
"""What these draft depends on what was verified before, not on the text alone."""
STATELESS = {"autoregressive", "rest", "own"}
STATEFUL = sorted(CASES.keys() - STATELESS)
FAST = {
    *(("native", label, 0, 100) for label in ("eagle", "eagle3-chain", "draft_model-tree", "medusa", "suffix-head")),
    *(("torch", label, 0, 20) for label in ("eagle3-chain", "draft_model")),
}
EVERY = itertools.product(("native", "torch"), STATEFUL, range(3), [1000])


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    model = tiny_model(vocab_size=VOCABULARY, num_hidden_layers=7)
    texts = [[RNG.randrange(VOCABULARY) for _ in range(60)] for _ in range(4)]
    return Workshop(model, tmp_path_factory.mktemp("workshop"), texts)


@pytest.fixture(scope="module")
def targets(workshop):
    """In torch in float64, where rounding of more rows at a time decides nothing."""
    double = copy.deepcopy(workshop.model).double()
    made = {"torch": target_of(double, engine="torch")}
    if library.why_not() is None:
        made["native"] = target_of(workshop.model, engine="native")
    return made


def plain(target, prompt, sampling):
    drafter, zero = Workshop(None, None).create("autoregressive")
    return decode(target, drafter, zero, prompt, sampling, eos_ids=[], rule="coupled").token_ids


def switched(target, drafter, sampling, switches, prompts=PROMPTS, **settings):
    """The requests after so many switches in all, each with its trees."""
    engine, asked = Engine(target, Switched(switches // len(prompts))), []
    for prompt in prompts:
        trees = []
        request = Request(
            target, drafter.fork(), prompt, sampling, eos_ids=[], trace_trees=trees, rule="coupled", **settings
        )
        engine.add(request)
        asked.append((prompt, request, trees))
    while engine.busy:
        engine.step()
    return asked


def sampling_for(switches):
    tokens = switches // len(PROMPTS) * 5
    return [
        Sampling(max_tokens=tokens),
        Sampling(max_tokens=tokens, repetition_penalty=1.2),
        Sampling(max_tokens=tokens, temperature=0.9, seed=3),
    ]


def unpaused(target, drafter, prompt, sampling):
    """The trees of an instance that is asked at every position."""
    shadow = EveryPosition(drafter)
    decode(target, shadow, lengths.create(str(BUDGET)), prompt, sampling, eos_ids=[], rule="coupled")
    return shadow.trees


def same(tree, other):
    return (tree.tokens, tree.parents) == (other.tokens, other.parents)


@pytest.mark.parametrize(
    ("engine", "label", "which", "switches"), few([*sorted(FAST), *EVERY], lambda case: case in FAST)
)
def test_after_a_pause_drafts_are_those_of_an_instance_that_never_paused(
    targets, workshop, engine, label, which, switches
):
    if engine not in targets:
        pytest.skip(library.why_not())
    target = targets[engine]
    sampling = sampling_for(switches)[which]
    drafter, _ = workshop.create(label)
    asked = switched(target, drafter, sampling, switches)
    drafted = 0
    for prompt, request, trees in asked:
        result = request.result()
        assert result.token_ids == plain(target, prompt, sampling)
        found = {place: tree for place, tree in by_position(trees, result, prompt).items() if len(tree) > 1}
        drafted += len(found)
        if label not in LEARNS:
            expected = unpaused(target, workshop.create(label)[0], prompt, sampling)
            stale = [place for place, tree in found.items() if not same(tree, expected[place])]
            assert stale == []
    assert drafted > switches / 4
