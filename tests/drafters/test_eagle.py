"""EAGLE: what is drafted, against the definition."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.eagle import head as eagle_head
from ianvs_specdec.drafters.eagle import native as eagle_native
from ianvs_specdec.drafters.eagle.trees import PATHS, limited
from ianvs_specdec.engine import Context, Observation, TokenTree
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.targets import fused_sequence
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.registry import create_target
from tests.drafters.eagle_oracle import (
    CONFIG,
    ENGINES,
    HEADS,
    PROMPT,
    VOCABULARY,
    Oracle,
    random_tensors,
    run,
    save,
    save_heads,
    wide,
)
from tests.support.lengths import ScriptedLength
from tests.support.requests import decoded
from tests.support.slow_cases import slow_unless
from tests.support.targets import OneSequence


@pytest.fixture(scope="module")
def model():
    return wide()


@pytest.fixture(scope="module", params=ENGINES)
def target(model, request):
    return create_target(model, engine=request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_heads(tmp_path_factory.mktemp("heads"))


def oracle_of(model, label):
    eagle3, changes = HEADS[label]
    config = {**CONFIG, **changes}
    return Oracle(model, random_tensors(config, eagle3), config)


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))]


def forced(target, drafter, steps=5):
    """Trees and the text up to their roots, where some branch is taken to be right at every step, whatever the target
    says: accepted paths of all lengths, straight and branching."""
    rng = random.Random(0)
    sequence = OneSequence(target)
    prefill = sequence.prefill(PROMPT, drafter.prepare(target))
    context = Context([*PROMPT, 7], len(PROMPT), 100, Sampling(), torch.Generator())
    drafter.begin(target, context, prefill)
    for _ in range(steps):
        tree = drafter.propose(context, 1000)
        yield list(context.tokens), tree
        path, token = tree.path_to(rng.randrange(len(tree))), rng.randrange(VOCABULARY)
        output = sequence.verify(tree)
        sequence.commit(path)
        context.tokens += [*(tree.tokens[node] for node in path[1:]), token]
        drafter.observe(Observation(tree, output, path, token))


@pytest.mark.parametrize("label", HEADS)
def test_the_dynamic_tree_is_what_the_definition_says(model, target, folder, label):
    drafter = drafters.create("eagle", {"head": folder / label, "total_tokens": 14, "depth": 3, "eagle_topk": 4})
    oracle = oracle_of(model, label)
    for text, tree in forced(target, drafter):
        oracle.read(text)
        assert paths(tree) == [path for path, _ in oracle.dynamic(14, 3, 4)]


@pytest.mark.parametrize("label", ["eagle", "eagle3"])
def test_the_static_tree_and_the_chain_are_what_the_definition_says(model, target, folder, label):
    oracle = oracle_of(model, label)
    static = drafters.create("eagle", {"head": folder / label, "tree": "static"})
    for text, tree in forced(target, static):
        oracle.read(text)
        assert paths(tree) == oracle.ranked(PATHS)
    chain = drafters.create("eagle", {"head": folder / label, "tree": "chain", "depth": 4})
    for text, tree in forced(target, chain):
        oracle.read(text)
        assert paths(tree) == oracle.ranked([(0,) * depth for depth in range(1, 6)])


def test_any_target_will_do_and_steps_without_drafts_in_between(folder):
    """A model that transformers runs, prompts of one token, and a length that drafts every other step."""

    model = wide("gpt2", n_layer=2, layers=2)
    drafter = drafters.create("eagle", {"head": folder / "eagle", "total_tokens": 10, "depth": 2, "eagle_topk": 3})
    oracle = oracle_of(model, "eagle")
    trees: list[TokenTree] = []
    target = create_target(model)
    assert isinstance(target, HuggingFaceTarget)
    for prompt in ([4], PROMPT):
        trees.clear()
        result = decoded(
            target,
            drafter,
            ScriptedLength(lambda _, step: 9 * (step % 2)),
            prompt,
            Sampling(max_tokens=12),
            trace_trees=trees,
        )
        done = 1
        for step, tree in zip(result.trace.steps, trees, strict=True):
            if len(tree) > 1:
                oracle.read([*prompt, *result.token_ids[:done]])
                assert paths(tree) == [path for path, _ in oracle.dynamic(10, 2, 3)]
            done += step.emitted


def test_weights_that_are_too_large_to_fold_draft_the_same(target, folder, monkeypatch):
    for label in ("eagle", "eagle3"):
        options = {"head": folder / label, "total_tokens": 14, "depth": 3, "eagle_topk": 4}
        folded = run(target, drafters.create("eagle", options))[0]
        with monkeypatch.context() as patch:
            patch.setattr(eagle_native, "FOLDED_TABLE", 0)
            patch.setattr(fused_sequence, "_FIRST_CAPACITY", 4)
            patch.setattr(eagle_head, "_FIRST_POSITIONS", 4)
            assert run(target, drafters.create("eagle", options))[0] == folded


def test_a_bias_of_the_targets_output_counts(folder):
    model = wide("phi")
    model.lm_head.bias.data.uniform_(-3, 3, generator=torch.Generator().manual_seed(0))
    oracle = oracle_of(model, "eagle")
    drafter = drafters.create("eagle", {"head": folder / "eagle", "tree": "chain"})
    for text, tree in run(HuggingFaceTarget(model), drafter, max_tokens=6)[0]:
        oracle.read(text)
        assert paths(tree) == oracle.ranked([(0,) * depth for depth in range(1, 8)])


def proposal(target, drafter, budget=1000, *, sampling=None, noise=None, confidence=0.0, seed=0):
    """The first tree of a request that begins with ``PROMPT``."""
    features = drafter.prepare(target)
    prefill = OneSequence(target).prefill(PROMPT, features)
    root = int(prefill.logits.argmax())
    generator = torch.Generator().manual_seed(seed)
    context = Context(
        [*PROMPT, root], len(PROMPT), 100, sampling or Sampling(), generator, noise, confidence=confidence
    )
    with torch.inference_mode():
        drafter.begin(target, context, prefill)
        return context.tokens, drafter.propose(context, budget)


def test_a_small_budget_of_a_static_tree_and_of_a_chain(model, target, folder):
    oracle = oracle_of(model, "eagle")
    static = drafters.create("eagle", {"head": folder / "eagle", "tree": "static"})
    chain = drafters.create("eagle", {"head": folder / "eagle", "tree": "chain"})
    for budget in (1, 2, 6, 24):
        text, tree = proposal(target, static, budget)
        oracle.read(text)
        assert len(tree) == budget + 1
        assert set(paths(tree)) <= set(oracle.ranked(PATHS))
        assert len(proposal(target, chain, budget)[1]) == min(budget, 7) + 1
    assert limited(25) == PATHS
    assert limited(3) == ((0,), (0, 0), (0, 0, 0))
    assert limited(25, depth=2, top_k=2) == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    narrow = drafters.create("eagle", {"head": folder / "eagle", "tree": "static", "depth": 1, "eagle_topk": 2})
    assert len(proposal(target, narrow)[1]) == 7
    nothing = drafters.create("eagle", {"head": folder / "eagle", "total_tokens": 1})
    assert len(proposal(target, nothing)[1]) == 1


@pytest.mark.parametrize("tree", ["dynamic", "static", "chain"])
def test_nothing_less_likely_than_asked_is_drafted(model, target, folder, tree):
    oracle = oracle_of(model, "eagle")
    drafter = drafters.create("eagle", {"head": folder / "eagle", "tree": tree})
    text, everything = proposal(target, drafter)
    oracle.read(text)

    def likelihood(path):
        return math.exp(sum(float(oracle.log_probabilities(path[:i])[path[i]]) for i in range(len(path))))

    values = sorted(likelihood(path) for path in paths(everything))
    for least in (values[len(values) // 2] * 0.999, 0.999):
        _, kept = proposal(target, drafter, confidence=least)
        assert set(paths(kept)) == {path for path in paths(everything) if likelihood(path) >= least}


def test_drawn_chains_and_static_trees_say_what_they_were_drawn_from(model, target, folder):
    for label, tree in (("eagle", "static"), ("eagle", "chain"), ("eagle3", "static"), ("eagle3", "chain")):
        oracle = oracle_of(model, label)
        drafter = drafters.create("eagle", {"head": folder / label, "tree": tree})
        text, drawn = proposal(target, drafter, sampling=Sampling(temperature=0.7))
        oracle.read(text)
        assert drawn.probabilities is not None
        for node in range(len(drawn)):
            path = tuple(drawn.tokens[i] for i in drawn.path_to(node)[1:])
            if drawn.children[node]:
                expected = oracle.log_probabilities(path, 0.7).exp()
                torch.testing.assert_close(drawn.probabilities[node], expected, atol=1e-5, rtol=1e-4)
                siblings = [drawn.tokens[child] for child in drawn.children[node]]
                assert len(set(siblings)) == len(siblings)
                assert all(expected[token] > 0 for token in siblings)
        others = [proposal(target, drafter, sampling=Sampling(temperature=3.0), seed=seed)[1].tokens for seed in (0, 1)]
        assert others[0] != others[1]


@pytest.mark.parametrize("tree", ["dynamic", "static", "chain"])
@pytest.mark.parametrize("label", ["eagle", "eagle3"])
def test_with_coupled_sampling_the_first_guess_is_the_draw_of_the_shared_noise(model, target, folder, tree, label):
    oracle = oracle_of(model, label)
    noise = Noise(3, VOCABULARY, torch.device("cpu"))
    drafter = drafters.create("eagle", {"head": folder / label, "tree": tree})
    text, drafted = proposal(target, drafter, sampling=Sampling(temperature=0.8), noise=noise)
    oracle.read(text)
    drawn: tuple[int, ...] = ()
    for depth in range(3):
        scores = oracle.log_probabilities(drawn, 0.8) + noise.at(len(text) + depth)
        drawn = (*drawn, int(scores.argmax()))
    assert paths(drafted)[0] == drawn[:1]
    assert drawn in paths(drafted)
    assert drafted.probabilities is None


def test_a_repetition_penalty_counts_for_the_head_too(target, folder):
    """The first token that the plain chain takes from the text is where the other one leaves it."""
    for label in ("eagle", "eagle3"):
        drafter = drafters.create("eagle", {"head": folder / label, "tree": "chain", "depth": 15})
        text, plain = proposal(target, drafter)
        _, penalised = proposal(target, drafter, sampling=Sampling(repetition_penalty=1e3))
        repeated = next(i for i, token in enumerate(plain.tokens) if i and token in text)
        assert penalised.tokens[:repeated] == plain.tokens[:repeated]
        assert penalised.tokens[repeated] != plain.tokens[repeated]


def test_the_context_window_ends_drafts(folder):
    target = create_target(wide(max_position_embeddings=20))
    drafter = drafters.create("eagle", {"head": folder / "eagle"})
    expected = run(target, drafters.create("autoregressive"), length="fixed:0")[1]
    assert run(target, drafter)[1].token_ids == expected.token_ids
    assert len(expected.token_ids) == 12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("scale", [1e2, 1e30])
def test_a_head_whose_numbers_overflow_changes_no_output(tmp_path, engine, temperature, scale):
    save(tmp_path, {name: scale * weights for name, weights in random_tensors(CONFIG, False).items()}, CONFIG)
    target = create_target(wide(), engine=engine)
    drafter = drafters.create("eagle", {"head": tmp_path})
    expected = run(target, drafters.create("autoregressive"), rule="coupled", temperature=temperature)[1]
    assert run(target, drafter, rule="coupled", temperature=temperature)[1].token_ids == expected.token_ids


TRACES = {
    "eagle1_strong": ("eagle1", {"tree": "static"}),
    "eagle2_strong_60_7_10": ("eagle1", {"total_tokens": 60, "depth": 7, "eagle_topk": 10}),
    "eagle3_dv320_60_7_10": ("eagle3", {}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("trace", "requests"), slow_unless(itertools.product(TRACES, [1, None]), lambda case: case[1] is not None)
)
def test_trees_and_counts_are_those_of_the_official_implementation(shared, reference_model, trace, requests, engine):
    head, options = TRACES[trace]
    drafter = drafters.create("eagle", {"head": shared / "reference" / head, **options})
    target = create_target(reference_model, engine=engine)
    for request in json.loads((shared / "reference" / "traces" / f"{trace}.json").read_text())[:requests]:
        prompt = request["prompt"]
        # The official output may end before the last step's tokens do.
        expected = request["output"][len(prompt) :]
        steps, result = run(target, drafter, prompt, eos=[2], max_tokens=len(expected) + 1)
        assert result.token_ids[: len(expected)] == expected
        assert [step.emitted for step in result.trace.steps] == [step["emitted"] for step in request["steps"]]
        for (_, tree), step in zip(steps, request["steps"], strict=True):
            assert tree.tokens == step["tree"]
            assert tree.depths == step.get("depth", tree.depths)
