"""Whatever the method, greedy and coupled output are the target's own, token for token."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from functools import cache

import pytest
from transformers import AutoTokenizer

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.targets.registry import create_target
from tests.support.drafters import CASES, DEEP, Workshop
from tests.support.requests import request_of, results, target_of_kind
from tests.support.slow_cases import slow_unless
from tests.support.tiny import tiny_model
from tests.support.torch_path import torch_target

NONE, FIXED_0 = drafters.create("autoregressive"), lengths.create("fixed:0")
VOCABULARY = 16  # so few that even heads of random numbers are often right
RNG = random.Random(0)
PROMPTS = [tuple(RNG.randrange(VOCABULARY) for _ in range(length)) for length in (1, 9, 33)]
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

    def decode(self, method, cases, predictions):
        """Results of prompts with their sampling, several at once."""
        drafter, length = method
        drafter.prepare(self.target)
        requests = [
            request_of(self.target, *case, drafter.fork(), eos_ids=self.eos_ids, prediction=prediction)
            for case, prediction in zip(cases, predictions, strict=True)
        ]
        return results(Engine(self.target, length, max_batch_size=16), *requests)

    def __call__(self, *cases):
        """What it says to each."""
        new = [case for case in cases if case not in self._said]
        results = self.decode((NONE, FIXED_0), new, [()] * len(new))
        self._said |= {case: result.token_ids for case, result in zip(new, results, strict=True)}
        return [self._said[case] for case in cases]


def compare(alone, method, cases):
    """Decode with ``method``, each of several prompts with its sampling: the traces, and how many outputs differ. They
    may only behind two tokens that were as good as equal."""
    traces, differing = [], 0
    said = alone(*cases)
    for got, expected in zip(alone.decode(method, cases, said), said, strict=True):
        pairs = enumerate(itertools.zip_longest(got.token_ids, expected))
        first = next((position for position, (ours, theirs) in pairs if ours != theirs), None)
        assert first is None or first in dict(got.trace.near_ties), f"differs from {first}: {got.token_ids} {expected}"
        differing += first is not None
        traces.append(got.trace)
    return traces, differing


@pytest.fixture(scope="module")
def workshop_of(tmp_path_factory):
    """A function from architecture and number of layers to a workshop for such a model; "native" is a Llama in the
    native step."""

    @cache
    def get(name, layers):
        architecture = "llama" if name == "native" else name
        sizes = {"n_layer": layers} if architecture == "gpt2" else {"num_hidden_layers": layers}
        model = tiny_model(architecture, vocab_size=VOCABULARY, **sizes)
        alone = Alone(target_of_kind("native", model) if name == "native" else torch_target(model))
        cases = list(itertools.product(PROMPTS, (GREEDY[0], SAMPLED[0])))
        texts = [[*prompt, *said] for (prompt, _), said in zip(cases, alone(*cases), strict=True)]
        return alone, Workshop(model, tmp_path_factory.mktemp(architecture), texts)

    return get


def test_every_method_is_among_the_cases():
    # MTP layers come with models of some families only: drafters/test_mtp.py.
    assert {method for method, _ in CASES.values()} == set(drafters.METHODS) - {"mtp"}


ON_ANY_TARGET = {"prompt_lookup", "lookahead", "draft_model-tree", "eagle"}
TARGETS = slow_unless(
    itertools.product(("llama", "gpt2", "native"), CASES, ("greedy", "coupled")),
    lambda case: case[1] in ON_ANY_TARGET or (case[0], case[2]) in (("llama", "coupled"), ("native", "greedy")),
)


@pytest.mark.parametrize(("architecture", "label", "settings"), TARGETS)
def test_output_is_the_targets_own(architecture, label, settings, workshop_of):
    alone, workshop = workshop_of(architecture, 7 if label in DEEP else 2)
    method = workshop.create(label)
    traces = []
    for case in itertools.product(PROMPTS, GREEDY if settings == "greedy" else SAMPLED):
        (trace,), differing = compare(alone, method, [case])
        assert not differing
        traces.append(trace)
    assert any(step.accepted for trace in traces for step in trace.steps) or label in SELDOM_RIGHT


@pytest.fixture(scope="module")
def reference(shared, reference_model, tmp_path_factory):
    """The reference target alone, and a workshop with its heads."""
    folder = shared / "reference"
    traces = json.loads((folder / "traces" / "eagle1_strong.json").read_text(encoding="utf-8"))
    heads = {"eagle": folder / "eagle1", "eagle3": folder / "eagle3", "medusa": folder / "medusa"}
    texts = [trace["output"] for trace in traces]
    workshop = Workshop(reference_model, tmp_path_factory.mktemp("reference"), texts, heads)
    return Alone(create_target(reference_model), [2]), workshop


@pytest.fixture(scope="module")
def turns(shared, mt_bench):
    """Token ids of MT-Bench's first turns, its second turns, and Spec-Bench's first turns."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "reference" / "target")
    with (shared / "data" / "spec_bench" / "question_sample.jsonl").open(encoding="utf-8") as lines:
        spec_bench = [json.loads(line)["turns"][0] for line in lines]
    first, second = zip(*(row["turns"] for row in mt_bench), strict=True)
    return [tuple(tokenizer(text).input_ids) for text in dict.fromkeys([*first, *second, *spec_bench])]


@pytest.mark.parametrize(
    ("prompts", "tokens", "near_ties"), slow_unless([(1, 24, 0), (60, 48, 2)], lambda case: case[0] == 1)
)
@pytest.mark.parametrize("label", CASES)
def test_greedy_output_is_the_reference_targets_own(
    label, prompts, tokens, near_ties, reference, turns, record_property
):
    """Of first turns of MT-Bench. Outputs that part behind a near-tie are told apart, and are rare."""
    alone, workshop = reference
    method = workshop.create(label)
    traces, differing = compare(alone, method, [(prompt, Sampling(max_tokens=tokens)) for prompt in turns[:prompts]])
    assert len(traces) == prompts
    record_property("outputs that part behind a near-tie", differing)
    assert differing <= near_ties


@pytest.mark.parametrize(("prompts", "near_ties"), slow_unless([(2, 0), (200, 2)], lambda case: case[0] == 2))
@pytest.mark.parametrize("label", CASES)
def test_coupled_output_is_the_reference_targets_own(label, prompts, near_ties, reference, turns, record_property):
    alone, workshop = reference
    method = workshop.create(label)
    shortest = sorted(turns, key=len)[:prompts]
    assert len(shortest) == prompts
    cases = [(prompt, replace(SAMPLED[seed % 2], max_tokens=16, seed=seed)) for seed, prompt in enumerate(shortest)]
    differing = compare(alone, method, cases)[1]
    record_property("outputs that part behind a near-tie", differing)
    assert differing <= near_ties
