"""Sampling with every method that draws its drafts at random: the output is distributed as the target's own samples."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import decode
from ianvs_specdec.engine.loop import Engine
from tests.support.drafters import CASES, DEEP, DRAWING, Workshop, noisy
from tests.support.lengths import ScriptedLength
from tests.support.requests import request_of, results
from tests.support.slow_cases import slow_unless
from tests.support.tiny import tiny_model
from tests.support.torch_path import torch_target

from .test_acceptance import chi_square_p_value

VOCABULARY = 6
FEW_DRAWS, DRAWS = 250, 500
PROMPT = [3, 4, 5, 3, 4]
TEMPERATURE = 3.0  # at which the small target is undecided enough for every mistake to show


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A function from the number of layers to a target of six tokens, a workshop for it, and the exact probability of
    every pair of second and third output token."""
    made = {}

    def get(layers):
        if layers not in made:
            model = tiny_model(
                vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=layers, initializer_range=0.6 / layers
            )
            folder = tmp_path_factory.mktemp("small")
            noisy(model, 0.7).save_pretrained(folder / "draft")
            workshop = Workshop(model, folder, ready={"draft": folder / "draft"})
            exact = exact_pairs(model)
            made[layers] = torch_target(model), workshop, exact
        return made[layers]

    return get


@torch.inference_mode()
def exact_pairs(model):
    def after(prompts):
        return (model(torch.tensor(prompts)).logits[:, -1] / TEMPERATURE).softmax(-1)

    tokens = range(VOCABULARY)
    first, second = after([PROMPT])[0], after([[*PROMPT, a] for a in tokens])
    third = after([[*PROMPT, a, b] for a in tokens for b in tokens]).view(VOCABULARY, VOCABULARY, VOCABULARY)
    return torch.einsum("a,ab,abc->bc", first, second, third)


def assert_follows_the_target(made, drafter, length, draws):
    target, _, exact = made
    counts, trees = torch.zeros_like(exact), []
    samplings = [Sampling(max_tokens=4, temperature=TEMPERATURE, seed=seed) for seed in range(draws)]
    drafter.prepare(target)
    settings = {"rule": "rejection", "trace_trees": trees}
    requests = [request_of(target, PROMPT, sampling, drafter.fork(), **settings) for sampling in samplings]
    for result in results(Engine(target, length), *requests):
        counts[result.token_ids[1], result.token_ids[2]] += 1
    p_value = chi_square_p_value(counts, exact * draws)
    assert p_value > 0.001, f"emitted tokens do not follow the target: chi-square p = {p_value:.2g}"
    return trees


CHEAP = ("draft_model", "eagle-static")
BUDGETS = slow_unless(
    [
        *((label, 12, 0.1, FEW_DRAWS) for label in CHEAP),
        *((label, *budget, DRAWS) for label in sorted(DRAWING) for budget in ((3, 0.0), (12, 0.1))),
    ],
    lambda case: case[-1] == FEW_DRAWS,
)


@pytest.mark.parametrize(("label", "nodes", "confidence", "draws"), BUDGETS)
def test_drawn_drafts_leave_the_targets_distribution_as_it_is(label, nodes, confidence, draws, small):
    made = small(7 if label in DEEP else 1)
    drafter, _ = made[1].create(label)
    trees = assert_follows_the_target(made, drafter, ScriptedLength(lambda *_: nodes, confidence), draws)
    assert all(tree.probabilities for tree in trees if len(tree) > 1)
    assert len({len(tree) for tree in trees}) > 1 or not confidence


@pytest.mark.parametrize("label", sorted(set(CASES) - DRAWING - {"autoregressive"}))
def test_other_drafts_are_not_drawn(label, small, monkeypatch):
    """So that what says nothing of probabilities depends on nothing but what was emitted."""
    target, workshop, _ = small(7 if label in DEEP else 1)
    workshop.texts = [PROMPT * 3]
    drafter, length = workshop.create(label)
    propose = drafter.propose

    def watched(context, budget):
        before = context.generator.get_state()
        tree = propose(context, budget)
        assert torch.equal(context.generator.get_state(), before)
        assert not tree.probabilities
        return tree

    monkeypatch.setattr(drafter, "propose", watched)
    for seed in range(3):
        sampling = Sampling(max_tokens=8, temperature=TEMPERATURE, seed=seed)
        assert len(decode(target, drafter, length, PROMPT, sampling, eos_ids=[]).token_ids) == 8
