"""Verifying a tree equals decoding each of its paths token by token, on every architecture."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional

from ianvs_specdec.engine import TokenTree
from ianvs_specdec.engine.contracts import PromptChunk
from ianvs_specdec.targets import attention, fused, huggingface_sequence
from ianvs_specdec.targets.fused import FusedTarget
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.registry import create_target
from tests.support.targets import OneSequence
from tests.support.tiny import ARCHITECTURES, ONE_FORWARD, VOCABULARY, random_tree, tiny_model
from tests.support.torch_path import torch_target


def count_forwards(model):
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_verification_equals_sequential_forwards(name):
    model = tiny_model(name)
    target = OneSequence(HuggingFaceTarget(model))
    rng = random.Random(1)
    ids = [rng.randrange(3, VOCABULARY) for _ in range(12)]
    logits = target.prefill(ids).logits
    torch.testing.assert_close(logits, model(input_ids=torch.tensor([ids])).logits[0, -1:], rtol=1e-4, atol=1e-4)
    for nodes in (4, 1, 9, 6):
        tree = random_tree(rng, nodes)
        got = target.verify(tree).logits
        assert got.shape == (nodes, VOCABULARY)
        for node in range(nodes):
            sequence = ids + [tree.tokens[i] for i in tree.path_to(node)]
            expected = model(input_ids=torch.tensor([sequence])).logits[0, -1]
            assert (got[node] - expected).abs().max() < 1e-3 * expected.std()
        path = tree.path_to(rng.randrange(nodes))
        target.commit(path)
        ids += [tree.tokens[i] for i in path]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_branching_tree_takes_one_forward_if_supported(name):
    model = tiny_model(name)
    target = OneSequence(HuggingFaceTarget(model))
    target.prefill([3, 4, 5])
    tree = TokenTree([6, 7, 8, 9], [-1, 0, 0, 2])
    target.verify(tree)  # the first tree also tests the model
    target.commit([0, 2])
    calls = count_forwards(model)
    target.verify(tree)
    assert (len(calls) == 1) == (name in ONE_FORWARD)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_snapshot_can_be_restored_repeatedly(name):
    model = tiny_model(name)
    kinds = {type(target): target for target in (HuggingFaceTarget(model), torch_target(model), create_target(model))}
    for target in map(OneSequence, kinds.values()):
        target.prefill([3, 4, 5, 6])
        expected = target.verify(TokenTree.chain(7, [8])).logits
        target.prefill([3, 4, 5, 6])
        before = target.snapshot()
        for draft in ([9], [], [10, 11]):
            target.verify(TokenTree.chain(12, draft))
            target.commit(range(1 + len(draft) // 2))
            target.restore(before)
        torch.testing.assert_close(target.verify(TokenTree.chain(7, [8])).logits, expected, rtol=1e-4, atol=1e-4)


def test_the_cache_grows_past_its_first_capacity():
    model = tiny_model("llama")
    target = OneSequence(HuggingFaceTarget(model))
    ids = [3 + i % 50 for i in range(250)]
    target.prefill(ids)
    for token in range(20):
        logits = target.verify(TokenTree.chain(10 + token)).logits
        target.commit([0])
        ids.append(10 + token)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).logits[0, -1:]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "falcon-alibi", "mamba2"])
@torch.inference_mode()
def test_hidden_states_come_per_node(name):
    model = tiny_model(name)
    target = OneSequence(HuggingFaceTarget(model))
    ids = [3, 4, 5, 6]
    prefill = target.prefill(ids, features=(1, -1))
    assert [h.shape for h in prefill.hidden] == [(4, 32), (4, 32)]
    tree = TokenTree([7, 8, 9, 10], [-1, 0, 0, 2])
    hidden = target.verify(tree).hidden
    assert [h.shape for h in hidden] == [(4, 32), (4, 32)]
    sequence = ids + [tree.tokens[i] for i in tree.path_to(3)]
    expected = model(input_ids=torch.tensor([sequence]), output_hidden_states=True).hidden_states
    for got, index in zip(hidden, (1, -1), strict=True):
        torch.testing.assert_close(got[3], expected[index][0, -1], rtol=1e-4, atol=1e-4)


GPU = torch.device("cuda")


@pytest.fixture
def kernels(monkeypatch):
    """Whether cuDNN's kernel is enabled at each attention, with a CPU treated as a GPU."""
    seen = []
    compute = functional.scaled_dot_product_attention

    def watched(*args, **kwargs):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return compute(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    for module in (fused, huggingface_sequence):
        monkeypatch.setattr(module, "any_length", lambda _: attention.any_length(GPU))
    return seen


@pytest.mark.parametrize("kind", [FusedTarget, HuggingFaceTarget])
def test_gpus_do_not_use_kernels_with_plans(kind, kernels):
    target = kind(tiny_model("llama"))
    sequence = target.open()
    target.step([(sequence, PromptChunk([1, 2, 3]))])
    target.step([(sequence, TokenTree.chain(4, [5, 6]))])
    assert len(kernels) == 2 * target.layers
    assert not any(kernels)
    assert torch.backends.cuda.cudnn_sdp_enabled(), "the setting is restored"
