"""The native step has the logits of transformers and refuses unsupported models."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ianvs_specdec.engine import TokenTree
from ianvs_specdec.engine.contracts import PromptChunk
from ianvs_specdec.engine.memory import tensor_bytes
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.build import X86_VARIANTS
from ianvs_specdec.targets.native.target import PROMPT_ROWS, NativeTarget, native_unsupported_reason
from tests.support.tiny import FUSED, VOCABULARY, random_tree, tiny_model


def logits(target: NativeTarget, prompt: list[int], tree: TokenTree) -> torch.Tensor:
    sequence = target.open()
    target.step([(sequence, PromptChunk(prompt))])
    return target.step([(sequence, tree)])[0].logits


def expected(model: Any, prompt: list[int], tree: TokenTree) -> torch.Tensor:
    """Logits of transformers for each node after its path."""
    rows = []
    for node in range(len(tree)):
        tokens = prompt + [tree.tokens[i] for i in tree.path_to(node)]
        with torch.inference_mode():
            rows.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float())
    return torch.stack(rows)


TYPES = {torch.bfloat16: 0.05, torch.float16: 0.01}
"""Maximum error, relative to the standard deviation of the logits."""


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FUSED)
def test_a_tree_has_the_logits_of_transformers(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, initializer_range=0.1)
    wanted = expected(model, [5, 9, 3, 7], tree := random_tree(random.Random(1), 9))
    rounded = model.to(dtype)
    assert native_unsupported_reason(rounded) is None
    got = logits(NativeTarget(rounded), [5, 9, 3, 7], tree)
    assert (got - wanted).abs().max() < TYPES[dtype] * wanted.std()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("name", FUSED)
def test_rounded_weights_stay_close(name: str, quantization: str) -> None:
    model = tiny_model(name, initializer_range=0.1)
    wanted = expected(model, [5, 9, 3, 7], tree := random_tree(random.Random(1), 9))
    got = logits(NativeTarget(model, quantization=quantization), [5, 9, 3, 7], tree)
    assert (got - wanted).std() < {"int8": 0.05, "int4": 0.3}[quantization] * wanted.std()


@pytest.mark.parametrize("name", FUSED)
def test_hidden_states_are_those_of_transformers(name: str) -> None:
    model = tiny_model(name, initializer_range=0.1)
    tokens = [5, 9, 3, 7, 11, 4]
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    features = (2, 0, -1, 1)
    target = NativeTarget(model)
    sequence = target.open(features)
    (prompt,) = target.step([(sequence, PromptChunk(tokens[:4]))])
    (chain,) = target.step([(sequence, TokenTree.chain(tokens[4], tokens[5:]))])
    for feature, first, second in zip(features, prompt.hidden, chain.hidden, strict=True):
        torch.testing.assert_close(torch.cat([first, second]), states[feature][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("overrides", [{"head_dim": 6}, {"hidden_size": 44, "intermediate_size": 37, "head_dim": 10}])
def test_odd_widths(overrides: dict[str, int]) -> None:
    model = tiny_model("qwen3", initializer_range=0.1, **overrides)
    wanted = expected(model, [5, 9], tree := random_tree(random.Random(2), 7))
    torch.testing.assert_close(logits(NativeTarget(model), [5, 9], tree), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("_every_variant")
@pytest.mark.parametrize("variant", X86_VARIANTS)
def test_every_variant_computes_the_model(variant: str) -> None:
    if variant not in library.variants():
        pytest.skip(f"this processor or compiler has no {variant}")
    model = tiny_model("llama", initializer_range=0.1)
    wanted = expected(model, [5, 9], tree := random_tree(random.Random(2), 20))
    torch.testing.assert_close(logits(NativeTarget(model, variant=variant), [5, 9], tree), wanted, rtol=1e-4, atol=1e-4)


def test_a_long_context() -> None:
    model = tiny_model("llama", initializer_range=0.1)
    prompt = [3 + i * i % 50 for i in range(3 * PROMPT_ROWS)]
    target = NativeTarget(model)
    sequence = target.open()
    for start in range(0, len(prompt), PROMPT_ROWS):
        target.step([(sequence, PromptChunk(prompt[start : start + PROMPT_ROWS], last=False))])
    (got,) = target.step([(sequence, TokenTree([5, 6, 7], [-1, 0, 0]))])
    wanted = expected(model, prompt, TokenTree([5, 6, 7], [-1, 0, 0]))
    torch.testing.assert_close(got.logits, wanted, rtol=1e-4, atol=1e-4)


def test_unsupported_models_are_refused_with_a_reason() -> None:
    assert "the native step has no model_type gpt2" in str(native_unsupported_reason(tiny_model("gpt2")))
    assert "float32, bfloat16, float16" in str(native_unsupported_reason(tiny_model("llama").double()))


def test_a_modified_layer_is_found() -> None:
    model = tiny_model("llama", num_hidden_layers=6)
    assert native_unsupported_reason(model) is None
    model.model.layers[4].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: -output)
    assert "does not compute what its configuration says" in str(native_unsupported_reason(model))


def test_invalid_steps_raise_and_change_nothing() -> None:
    target = NativeTarget(tiny_model("llama"))
    sequence, other = target.open(), target.open()
    target.step([(sequence, PromptChunk([4, 5]))])
    before = logits(target, [4, 5], TokenTree.chain(6))
    with pytest.raises(ValueError, match="vocabulary"):
        target.step([(other, PromptChunk([7, 8])), (sequence, TokenTree.chain(VOCABULARY))])
    with pytest.raises(ValueError, match="parents"):
        target.step([(other, PromptChunk([7, 8])), (sequence, TokenTree([6, 7], [-1, 1]))])
    (first,) = target.step([(other, PromptChunk([4, 5]))])
    assert first.logits.shape == (1, VOCABULARY)
    assert torch.equal(target.step([(sequence, TokenTree.chain(6))])[0].logits, before)
    with pytest.raises(ValueError, match="path"):
        sequence.commit([1])
    sequence.close()
    with pytest.raises(ValueError, match="closed"):
        target.step([(sequence, TokenTree.chain(6))])


def test_memory_of_closed_sequences_is_reused() -> None:
    target = NativeTarget(tiny_model("llama"))
    prompt = [3 + i % 50 for i in range(200)]

    def serve() -> None:
        sequences = [target.open() for _ in range(3)]
        target.step([(sequence, PromptChunk(prompt)) for sequence in sequences])
        for sequence in sequences[1:]:
            sequence.close()
            sequence.close()

    serve()
    used = target.native.pages_bytes
    assert used == 3 * target.memory(len(prompt))
    for _ in range(20):
        serve()
    assert target.native.pages_bytes == used


@pytest.mark.parametrize(("quantization", "bits"), [(None, 16), ("int8", 9), ("int4", 5)])
def test_memory_of_the_weights_is_counted(quantization: str | None, bits: int) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = tiny_model("llama", **sizes).to(torch.bfloat16)
    numbers = sum(p.numel() for name, p in model.named_parameters() if "proj" in name)
    target = NativeTarget(model, consume=True, quantization=quantization)
    assert model.model.layers[1].mlp.up_proj.weight.numel() == 0
    assert numbers * (bits - 1) / 8 < tensor_bytes(*target.weights) < 1.2 * numbers * bits / 8
