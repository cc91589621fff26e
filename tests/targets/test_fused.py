"""``FusedTarget`` has the results of transformers and is not used for unsupported models."""

from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.targets.fused import FusedTarget, fits
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.registry import create_target
from tests.support.targets import OneSequence
from tests.support.tiny import ARCHITECTURES, FUSED, NATIVE, VOCABULARY, random_tree, tiny_model
from tests.support.torch_path import torch_target


@pytest.mark.parametrize("name", FUSED)
def test_every_step_equals_transformers(name):
    model = tiny_model(name, initializer_range=0.1)
    generic, fused = OneSequence(HuggingFaceTarget(model)), OneSequence(torch_target(model))
    assert isinstance(fused.target, FusedTarget)
    rng = random.Random(1)
    features = (1, -1, 0)
    for prompt in ([5], [rng.randrange(3, VOCABULARY) for _ in range(40)]):
        pairs = [(generic.prefill(prompt, features), fused.prefill(prompt, features))]
        for nodes in (6, 1, 12, 3):
            tree = random_tree(rng, nodes)
            pairs.append((generic.verify(tree), fused.verify(tree)))
            path = tree.path_to(rng.randrange(nodes))
            generic.commit(path)
            fused.commit(path)
        for expected, got in pairs:
            torch.testing.assert_close(got.logits, expected.logits, rtol=1e-3, atol=1e-3)
            for a, b in zip(got.hidden, expected.hidden, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_a_prompt_in_chunks_equals_transformers(monkeypatch):
    monkeypatch.setattr(FusedTarget, "prompt_rows", 8)
    model = tiny_model("llama", initializer_range=0.1)
    expected, got = (
        OneSequence(target).prefill(list(range(3, 23)), (1, -1))
        for target in (HuggingFaceTarget(model), torch_target(model))
    )
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-3, atol=1e-3)
    for a, b in zip(got.hidden, expected.hidden, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - NATIVE))
def test_other_architectures_use_transformers(name):
    assert isinstance(create_target(tiny_model(name)), HuggingFaceTarget)


def test_a_modified_model_uses_transformers():
    model = tiny_model("llama", num_hidden_layers=9)
    assert fits(model)
    model.model.layers[4].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -output)
    assert create_target(model).kind == "transformers"
    with pytest.raises(UserError, match="this model is another"):
        create_target(model, engine="torch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUSED)
def test_models_of_any_dtype_and_depth_fit(name, dtype):
    assert fits(tiny_model(name, num_hidden_layers=8).to(dtype))


def test_only_consume_changes_the_model():
    model = tiny_model("llama")
    tree = TokenTree([5, 6, 7], [-1, 0, 0])

    def logits(target):
        sequence = OneSequence(target)
        sequence.prefill([3, 4])
        return sequence.verify(tree).logits

    fused = logits(torch_target(model))
    torch.testing.assert_close(fused, logits(HuggingFaceTarget(model)), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fused, logits(torch_target(model, consume=True)))
    assert model.model.layers[1].mlp.up_proj.weight.numel() == 0


def test_bfloat16_stays_close_to_float32():
    exact = torch_target(tiny_model("llama", initializer_range=0.1))
    rounded = torch_target(tiny_model("llama", initializer_range=0.1).to(torch.bfloat16))
    assert isinstance(rounded, FusedTarget)
    tree = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])
    exact, rounded = OneSequence(exact), OneSequence(rounded)
    for sequence in (exact, rounded):
        sequence.prefill([3, 4, 9])
    expected, got = exact.verify(tree).logits, rounded.verify(tree).logits.float()
    assert (got - expected).abs().max() < 0.05 * expected.std()
