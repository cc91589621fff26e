"""Whatever the method, greedy and coupled output are the target's own, token for token."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import decode, target_of
from ianvs_specdec.types import Sampling
from tests.support.drafters import CASES, DEEP, Workshop
from tests.support.tiny import tiny_model

NONE, FIXED_0 = drafters.create("autoregressive"), lengths.create("fixed:0")
VOCABULARY = 16  # so few that even heads of random numbers are often right
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(VOCABULARY) for _ in range(length)] for length in (1, 9, 33)]
GREEDY = [Sampling(max_tokens=16), Sampling(max_tokens=16, repetition_penalty=1.2)]
SELDOM_RIGHT = {"autoregressive", "eagle3-chain"}
SAMPLED = [
    Sampling(max_tokens=16, temperature=0.9, top_p=0.9),
    Sampling(max_tokens=16, temperature=1.3, top_k=6, repetition_penalty=1.2),
]


class Alone:
    """What a target says without drafts, asked once."""

    def __init__(self, target, eos_ids=()):
        self.target, self.eos_ids = target, eos_ids
        self._said = {}

    def decode(self, method, prompt, sampling, prediction=()):
        drafter, length = method
        rule = "rejection" if sampling.greedy else "coupled"
        settings = {"eos_ids": self.eos_ids, "rule": rule, "prediction": prediction}
        return decode(self.target, drafter, length, prompt, sampling, **settings)

    def __call__(self, prompt, sampling):
        key = tuple(prompt), sampling
        if key not in self._said:
            self._said[key] = self.decode((NONE, FIXED_0), prompt, sampling).token_ids
        return self._said[key]


def compare(alone, method, prompt, sampling):
    """Decode with ``method``: the trace, and whether the output differs. It may only behind two tokens that were as
    good as equal."""
    expected = alone(prompt, sampling)
    got = alone.decode(method, prompt, sampling, prediction=expected)
    pairs = enumerate(itertools.zip_longest(got.token_ids, expected))
    first = next((position for position, (ours, theirs) in pairs if ours != theirs), None)
    assert first is None or first in dict(got.trace.near_ties), f"differs from {first}: {got.token_ids} {expected}"
    return got.trace, first is not None


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def workshop_of(request, tmp_path_factory):
    """A function from the number of layers to a workshop for such a model."""
    workshops = {}

    def get(layers):
        if layers not in workshops:
            sizes = {"n_layer": layers} if request.param == "gpt2" else {"num_hidden_layers": layers}
            model = tiny_model(request.param, vocab_size=VOCABULARY, **sizes)
            alone = Alone(target_of(model))
            texts = [prompt + alone(prompt, sampling) for prompt in PROMPTS for sampling in (GREEDY[0], SAMPLED[0])]
            workshops[layers] = alone, Workshop(model, tmp_path_factory.mktemp(request.param), texts)
        return workshops[layers]

    return get


def test_every_method_is_among_the_cases():
    assert {method for method, _ in CASES.values()} == set(drafters.METHODS)


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_output_is_the_targets_own(label, settings, workshop_of):
    alone, workshop = workshop_of(7 if label in DEEP else 2)
    method = workshop.create(label)
    accepted = 0
    for prompt, sampling in itertools.product(PROMPTS, settings):
        trace, differs = compare(alone, method, prompt, sampling)
        assert not differs
        accepted += sum(step.accepted for step in trace.steps)
    assert accepted > 0 or label in SELDOM_RIGHT


@pytest.fixture(scope="module")
def reference(shared, reference_model, tmp_path_factory):
    """The reference target alone, and a workshop with its heads."""
    folder = shared / "reference"
    traces = json.loads((folder / "traces" / "eagle1_strong.json").read_text(encoding="utf-8"))
    heads = {"eagle": folder / "eagle1", "eagle3": folder / "eagle3", "medusa": folder / "medusa"}
    texts = [trace["output"] for trace in traces]
    workshop = Workshop(reference_model, tmp_path_factory.mktemp("reference"), texts, heads)
    return Alone(target_of(reference_model), [2]), workshop


@pytest.fixture(scope="module")
def turns(shared, mt_bench):
    """Token ids of MT-Bench's first turns, its second turns, and Spec-Bench's first turns."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "reference" / "target")
    with (shared / "data" / "spec_bench" / "question_sample.jsonl").open(encoding="utf-8") as lines:
        spec_bench = [json.loads(line)["turns"][0] for line in lines]
    first, second = zip(*(row["turns"] for row in mt_bench), strict=True)
    return [tokenizer(text).input_ids for text in dict.fromkeys([*first, *second, *spec_bench])]


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_greedy_output_is_the_reference_targets_own_on_mt_bench(label, reference, turns, record_property):
    """60 first turns. Outputs that part behind a near-tie are told apart, and are rare."""
    alone, workshop = reference
    method = workshop.create(label)
    differing = [compare(alone, method, prompt, Sampling(max_tokens=48))[1] for prompt in turns[:60]]
    record_property("outputs that part behind a near-tie", sum(differing))
    assert sum(differing) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_coupled_output_is_the_reference_targets_own_for_200_prompts(label, reference, turns, record_property):
    alone, workshop = reference
    method = workshop.create(label)
    shortest = sorted(turns, key=len)[:200]
    assert len(shortest) == 200
    differing = []
    for seed, prompt in enumerate(shortest):
        sampling = replace(SAMPLED[seed % 2], max_tokens=16, seed=seed)
        differing.append(compare(alone, method, prompt, sampling)[1])
    record_property("outputs that part behind a near-tie", sum(differing))
    assert sum(differing) <= 2
