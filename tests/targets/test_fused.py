"""The fast path must compute what the model in transformers does, and step aside for models it does not know."""

from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec.engine import TokenTree
from ianvs_specdec.engine.contracts import Prompt
from ianvs_specdec.targets.fused import FusedTarget, fits
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.linear import Linear
from ianvs_specdec.targets.registry import target_of
from tests.support.one_sequence import OneSequence
from tests.support.tiny import ARCHITECTURES, FUSED, NATIVE, VOCABULARY, random_tree, tiny_model
from tests.support.torch_path import torch_target


@pytest.mark.parametrize("name", FUSED)
def test_every_step_equals_the_generic_path(name):
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


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - NATIVE))
def test_other_architectures_keep_the_generic_path(name):
    assert isinstance(target_of(tiny_model(name)), HuggingFaceTarget)


def test_a_model_that_computes_something_else_keeps_the_generic_path():
    model = tiny_model("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)
    assert isinstance(target_of(model), HuggingFaceTarget)


def test_one_layer_that_computes_something_else_is_found_among_many():
    model = tiny_model("llama", num_hidden_layers=9)
    assert torch_target(model).kind == "fused"
    model.model.layers[4].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -output)
    assert target_of(model).kind == "transformers"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUSED)
def test_the_dtype_and_the_depth_do_not_decide_whether_a_model_fits(name, dtype):
    assert fits(tiny_model(name, num_hidden_layers=8).to(dtype))


def test_asking_whether_a_model_fits_copies_a_layer_at_a_time_and_leaves_it_as_it_was(monkeypatch):
    model = tiny_model("qwen2", num_hidden_layers=12, vocab_size=5000, pad_token_id=4999)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    largest = []
    monkeypatch.setattr(FusedTarget, "__init__", _counting(FusedTarget.__init__, largest))
    assert fits(model)
    assert max(largest) < sum(parameter.numel() for parameter in model.parameters()) / 8
    assert model.config.num_hidden_layers == len(model.model.layers) == 12
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def _counting(original, sizes):
    def init(self, model, **options):
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        original(self, model, **options)

    return init


def test_the_cache_grows_and_keeps_what_it_holds():
    model = tiny_model("llama", initializer_range=0.1)
    generic, fused = OneSequence(HuggingFaceTarget(model)), OneSequence(FusedTarget(model))
    ids = [3 + i % 50 for i in range(505)]
    for target in (generic, fused):
        target.prefill(ids)
        target.verify(TokenTree.chain(4, range(5, 25)))
        target.commit(list(range(21)))
    tree = TokenTree([5, 6, 7], [-1, 0, 0])
    torch.testing.assert_close(fused.verify(tree).logits, generic.verify(tree).logits, rtol=1e-3, atol=1e-3)


def test_a_model_is_left_alone_unless_it_is_consumed():
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 7])
def test_products_in_any_layout_are_the_same(dtype, rows):
    torch.manual_seed(0)
    weight, bias, x, residual = torch.randn(48, 32), torch.randn(48), torch.randn(rows, 32), torch.randn(rows, 48)
    weight, bias, x, residual = (t.to(dtype) for t in (weight, bias, x, residual))
    linear = Linear(weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    rounding = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(linear(x).double(), exact, atol=rounding, rtol=0)
    torch.testing.assert_close(linear.added(x, residual).double(), exact + residual.double(), atol=rounding, rtol=0)


def test_steps_of_many_sequences_have_few_shapes_and_one_alone_has_its_own():
    """A kernel is compiled and kept for each number of rows."""
    target = FusedTarget(tiny_model("llama", initializer_range=0.1))
    computed: list[int] = []
    layer = target._stack[0]
    product = layer.qkv

    def counted(x: torch.Tensor) -> torch.Tensor:
        computed.append(len(x))
        return product(x)

    layer.qkv = counted
    alone, *others = [target.open((0, -1)) for _ in range(60)]
    target.step([(sequence, Prompt([3, 4, 5])) for sequence in (alone, *others)])
    rng = random.Random(2)
    trees = [random_tree(rng, 1 + number % 7) for number in range(len(others))]
    (expected,) = target.step([(alone, random_tree(random.Random(3), 5))])
    assert computed[1] == 5
    computed.clear()
    for number in range(1, len(others)):
        parts = [(alone, random_tree(random.Random(3), 5)), *zip(others[:number], trees, strict=False)]
        outputs = target.step(parts)
        assert [len(output.logits) for output in outputs] == [len(tree) for _, tree in parts]
        torch.testing.assert_close(outputs[0].logits, expected.logits, rtol=1e-4, atol=1e-4)
        for one, another in zip(outputs[0].hidden, expected.hidden, strict=True):
            torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-4)
        needed = sum(len(tree) for _, tree in parts)
        assert needed <= computed[-1] <= needed + max(7, needed // 2)
    assert len(set(computed)) < 20
