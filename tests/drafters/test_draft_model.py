"""A draft model: its chains and trees, its state beside the target's, and which models go together."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.engine import Context
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.targets.registry import create_target
from tests.support.drafters import noisy
from tests.support.lengths import ScriptedLength
from tests.support.requests import decoded
from tests.support.targets import OneSequence
from tests.support.tiny import VOCABULARY, tiny_model

PROMPT = [5, 9, 14, 3, 22, 9, 14, 31]
GREEDY, PLAIN = Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=1.0)
CPU = torch.device("cpu")


def saved(model, folder):
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def target():
    return create_target(tiny_model())


@pytest.fixture(scope="module")
def draft(target, tmp_path_factory):
    return saved(noisy(target.model, 0.2), tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def twin(target, tmp_path_factory):
    """The target itself as draft model."""
    return saved(target.model, tmp_path_factory.mktemp("twin"))


def begun(target, folder, prompt, sampling=GREEDY, branches=1, confidence=0.0, remaining=100, noise=None):
    drafter = DraftModel(folder, branches)
    drafter.prepare(target)
    prefill = OneSequence(target).prefill(prompt[:-1])
    context = Context(list(prompt), len(prompt) - 1, remaining, sampling, torch.Generator(), noise, confidence)
    drafter.begin(target, context, prefill)
    return drafter, context


@torch.inference_mode()
def next_logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0, -1]


def run(target, drafter, sampling, length="fixed:5", prompt=PROMPT, **settings):
    trees = []
    result = decoded(target, drafter, length, prompt, sampling, trace_trees=trees, **settings)
    return result, trees


def draft_logits(folder, tokens):
    from transformers import AutoModelForCausalLM

    return next_logits(AutoModelForCausalLM.from_pretrained(folder), tokens)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize(
    ("sampling", "rule"),
    [(GREEDY, "rejection"), (Sampling(max_tokens=30, repetition_penalty=1.3), "rejection"), (PLAIN, "coupled")],
    ids=str,
)
def test_what_the_target_itself_drafts_is_all_accepted(target, twin, sampling, rule, branches):
    """It is, only if the draft's state, history and noise are the target's at every step."""
    drafter = DraftModel(twin, branches)
    for prompt in (PROMPT, [7]):
        result, trees = run(target, drafter, sampling, prompt=prompt, rule=rule)
        assert [len(tree) - 1 for tree in trees[:4]] == [5, 5, 5, 5]
        if branches == 1:
            assert [step.emitted for step in result.trace.steps] == [6, 6, 6, 6, 5]
        else:
            assert len(result.trace.steps) < 15


def test_the_tree_holds_the_likeliest_nodes_of_the_beam(target, draft):
    """Branches 2, three levels by hand: the six nodes with the largest product of probabilities along their path."""
    drafter, context = begun(target, draft, PROMPT, branches=2)
    nodes, beam = {}, {(): 0.0}
    for _ in range(6):
        found = {}
        for path, score in beam.items():
            best = draft_logits(draft, [*PROMPT, *path]).log_softmax(-1).topk(2)
            found |= {
                (*path, token): score + value
                for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            }
        nodes |= found
        beam = dict(sorted(found.items(), key=lambda item: -item[1])[:2])
    expected = sorted(nodes, key=lambda path: -nodes[path])[:6]
    tree = drafter.propose(context, 6)
    paths = {tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))}
    assert paths == set(expected)
    assert len(tree) == 7


def test_the_coupled_draft_is_what_the_noise_makes_of_the_draft_models_distribution(target, draft):
    noise = Noise(4, VOCABULARY, CPU)
    sampling = Sampling(max_tokens=30, temperature=0.7, top_k=9)
    drafter, context = begun(target, draft, PROMPT, sampling, noise=noise)
    tokens = list(PROMPT)
    for _ in range(3):
        scores = draft_logits(draft, tokens) / 0.7
        scores[scores < scores.topk(9).values[-1]] = -math.inf
        tokens.append(int((scores.log_softmax(-1) + noise.at(len(tokens))).argmax()))
    assert drafter.propose(context, 3).tokens == tokens[len(PROMPT) - 1 :]


def test_drawn_children_come_with_the_distribution_they_were_drawn_from(target, draft):
    sampling = Sampling(max_tokens=30, temperature=0.7, top_p=0.9)
    drafter, context = begun(target, draft, PROMPT, sampling, branches=3)
    tree = drafter.propose(context, 9)
    assert len(tree) == 10
    for node in range(len(tree)):
        children = [tree.tokens[child] for child in tree.children[node]]
        assert bool(children) == (node in tree.probabilities)
        if children:
            text = [*PROMPT, *(tree.tokens[i] for i in tree.path_to(node)[1:])]
            scores = draft_logits(draft, text) / 0.7
            expected = scores.softmax(-1)
            q = tree.probabilities[node]
            kept = q > 0
            torch.testing.assert_close(q[kept], expected[kept] / expected[kept].sum(), rtol=1e-3, atol=1e-5)
            assert len(set(children)) == len(children) <= 3
            assert all(q[token] > 0 for token in children)


def test_confidence_ends_the_draft_where_the_product_of_probabilities_falls_below(target, draft):
    tokens, probability, products = list(PROMPT), 1.0, []
    for _ in range(8):
        q = draft_logits(draft, tokens).softmax(-1)
        tokens.append(int(q.argmax()))
        probability *= float(q.max())
        products.append(probability)
    for least in (products[0] * 1.01, products[2] * 1.01, products[2] * 0.99, products[5] * 0.99):
        drafter, context = begun(target, draft, PROMPT, confidence=least)
        assert len(drafter.propose(context, 8)) - 1 == sum(product >= least for product in products)


@pytest.mark.parametrize("name", ["mamba", "bloom"])
def test_a_draft_model_of_any_architecture(target, tmp_path, name):
    """Also one with a state that cannot be rolled back."""
    folder = saved(tiny_model(name), tmp_path)
    plain, _ = run(target, drafters.create("autoregressive"), GREEDY, "fixed:0")
    uneven = ScriptedLength(lambda _, step: (5, 0, 4, 0, 0, 1, 3)[step % 7])
    for length in ("fixed:5", uneven):
        result, trees = run(target, DraftModel(folder), GREEDY, length)
        assert result.token_ids == plain.token_ids
        tokens = [*PROMPT, *result.token_ids]
        for tree, end in zip(trees[:9], itertools.accumulate(n for _, n in result.trace.chunks), strict=False):
            context = tokens[: len(PROMPT) + end]
            for token in tree.tokens[1:]:
                assert token == int(draft_logits(folder, context).argmax())
                context = [*context, token]


def test_a_short_window_of_the_draft_model_ends_its_drafts(target, tmp_path):
    folder = saved(tiny_model("gpt2", n_positions=20), tmp_path)
    result, trees = run(target, DraftModel(folder), GREEDY)
    assert len(result.token_ids) == 30
    contexts = itertools.accumulate((n for _, n in result.trace.chunks), initial=len(PROMPT))
    for tree, context in zip(trees, list(contexts)[1:], strict=False):
        assert tree.depth <= max(0, 20 - context + 1)
    assert trees[0].depth == 5
    assert trees[-1].depth == 0


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "coupled"])
def test_lines_that_part_anywhere_are_what_each_would_be_alone(target, draft, sampling):
    noise = None if sampling.greedy else Noise(3, VOCABULARY, CPU)
    drafter, context = begun(target, draft, PROMPT, sampling, noise=noise)
    dice, ways = random.Random(1), [[]]
    with torch.inference_mode():
        lines = drafter.continuations(context)
        waiting = [0]
        for step in range(12):
            asked = [0] if step == 0 else dice.sample(waiting, min(len(waiting), dice.choice([1, 1, 3])))
            waiting = [node for node in waiting if node not in asked]
            for node, found in zip(asked, lines.grow(asked), strict=True):
                fresh, same = begun(target, draft, [*context.tokens, *ways[node]], sampling, noise=noise)
                [expected] = fresh.continuations(same).grow([0])
                assert [token for token, _ in found] == [token for token, _ in expected]
                assert [chance for _, chance in found] == pytest.approx([chance for _, chance in expected], rel=1e-3)
                for token, _ in found:
                    waiting.append(len(ways))
                    ways.append([*ways[node], token])
        # The model goes on from whatever came of it.
        deep = max(ways, key=len)
        context.tokens += [*deep[:-1], 7]
        fresh, same = begun(target, draft, context.tokens, sampling, noise=noise)
        assert drafter.propose(context, 4).tokens == fresh.propose(same, 4).tokens
