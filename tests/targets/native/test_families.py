"""Families of the native step: the logits of transformers, and refusal of unsupported configurations."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, decode
from ianvs_specdec.engine.contracts import PromptChunk
from ianvs_specdec.targets.native.target import NativeTarget, native_unsupported_reason
from ianvs_specdec.targets.registry import create_target
from tests.support.families import FAMILIES, TURN, WINDOW, family_model
from tests.support.slow_cases import slow_unless
from tests.support.tiny import Guesser, random_tree

DIFFERENT = ("gemma2", "qwen3-moe", "phi3-longrope")
"""Families that are tested with all weight types in the fast suite."""
KINDS = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.bfloat16, "int8"),
    "int4": (torch.bfloat16, "int4"),
}
PROMPT = [3 + (7 * i * i + 3 * i) % 60 for i in range(40)]


def after(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits of transformers after the last of ``tokens``."""
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert got.argmax() == wanted.argmax()


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_and_trees_have_the_logits_of_transformers(name: str) -> None:
    model = family_model(name)
    assert native_unsupported_reason(model) is None
    target, rng, tokens = create_target(model), random.Random(4), list(PROMPT)
    assert target.kind == "native"
    sequence = target.open()
    (prompt,) = target.step([(sequence, PromptChunk(tokens))])
    assert_close(prompt.logits[0], after(model, tokens))
    for tree in (TokenTree.chain(7, range(8, 20)), random_tree(rng, 3 * WINDOW)):
        (output,) = target.step([(sequence, tree)])
        for node in range(len(tree)):
            assert_close(output.logits[node], after(model, tokens + [tree.tokens[i] for i in tree.path_to(node)]))
        path = tree.path_to(len(tree) - 1)
        sequence.commit(path)
        tokens += [tree.tokens[i] for i in path]


@pytest.mark.parametrize("window", [1, 2, 64, 65, 100])
def test_windows_of_any_width(window: int) -> None:
    model = family_model("gemma2", sliding_window=window)
    target, tokens = NativeTarget(model), [3 + i * i % 60 for i in range(150)]
    sequence = target.open()
    target.step([(sequence, PromptChunk(tokens[:-1])), (other := target.open(), PromptChunk(tokens))])
    for tree in (TokenTree.chain(tokens[-1], range(5, 35)), random_tree(random.Random(window), 30)):
        (output,) = target.step([(sequence, tree)])
        for node in range(len(tree)):
            path = [tree.tokens[i] for i in tree.path_to(node)]
            assert_close(output.logits[node], after(model, tokens[:-1] + path))
    (output,) = target.step([(other, TokenTree.chain(5))])
    assert_close(output.logits[0], after(model, [*tokens, 5]))


@pytest.mark.parametrize(
    ("name", "kind"),
    slow_unless(itertools.product(FAMILIES, KINDS), lambda case: case[1] == "float32" or case[0] in DIFFERENT),
)
def test_drafts_do_not_change_the_output(name: str, kind: str) -> None:
    dtype, quantization = KINDS[kind]
    target = NativeTarget(family_model(name).to(dtype), quantization=quantization)
    sampling = Sampling(max_tokens=TURN)
    # The output crosses the length at which rotations change.
    prompt = PROMPT[: TURN // 2]
    plain = drafters.create("autoregressive")
    wanted = decode(target, plain, lengths.create("fixed:0"), prompt, sampling, eos_ids=[]).token_ids
    for drafter in (Guesser(wanted, 1), Guesser(wanted, 2, chains_only=True), drafters.create("prompt_lookup")):
        result = decode(target, drafter, lengths.create("fixed:6"), prompt, sampling, eos_ids=[])
        assert result.token_ids == wanted
    if kind == "float32":
        tokens = prompt + wanted
        assert wanted == [int(after(target.model, tokens[:end]).argmax()) for end in range(len(prompt), len(tokens))]


def test_a_tree_crosses_the_length_at_which_rotations_change() -> None:
    model = family_model("phi3-longrope")
    target, tokens = NativeTarget(model), PROMPT[: TURN - 3]
    sequence, alone = target.open((1, -1)), target.open((1, -1))
    for each in (sequence, alone):
        target.step([(each, PromptChunk(tokens))])
    for seed in (1, 2):
        tree = random_tree(random.Random(seed), 25)
        assert max(tree.depths) > 3
        (output,) = target.step([(sequence, tree)])
        for node in range(len(tree)):
            path = tree.path_to(node)
            wanted = after(model, tokens + [tree.tokens[i] for i in path])
            assert_close(output.logits[node], wanted)
            start = alone.snapshot()
            for i in path:
                (one,) = target.step([(alone, TokenTree.chain(tree.tokens[i]))])
                alone.commit([0])
            alone.restore(start)
            assert torch.equal(one.logits[0], output.logits[node])
            for got, right in zip(output.hidden, one.hidden, strict=True):
                assert torch.equal(got[node], right[0])
        path = tree.path_to(2)
        sequence.commit(path)
        tokens += [tree.tokens[i] for i in path]
        target.step([(alone, PromptChunk([tree.tokens[i] for i in path]))])


FLAGS: list[tuple[str, str, Any]] = [
    ("granite", "hidden_act", "relu"),
    ("gemma2", "use_bidirectional_attention", True),
    ("gemma3", "attn_logit_softcapping", 20.0),
    ("olmo2", "sliding_window", 4),
    ("olmoe", "clip_qkv", 1.0),
    ("mixtral", "norm_topk_prob", True),
    ("qwen3-moe", "shared_expert_intermediate_size", 16),
    ("mistral", "layer_types", ["full_attention"] * 4),
    ("mistral", "attention_chunk_size", 8),
    ("mistral", "rope_parameters", {"factor": 2.0, "rope_theta": 10000.0, "rope_type": "dynamic"}),
    ("qwen2", "layer_types", ["chunked_attention"] * 4),
    ("qwen2", "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}),
    ("qwen3", "attn_output_gate", True),
    ("granite", "normalization_function", "layernorm"),
    ("granite", "rope_parameters", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("smollm3", "qk_norm", True),
    ("gemma2", "query_pre_attn_scalar", -1),
]


@pytest.mark.parametrize(("name", "key", "value"), FLAGS)
def test_unsupported_keys_are_refused_by_name(name: str, key: str, value: Any) -> None:
    model = family_model(name)
    setattr(model.config, key, value)
    # In a rotary embedding the last key is the unsupported one.
    named = list(value)[-1] if isinstance(value, dict) else key
    assert named in str(native_unsupported_reason(model))


def test_a_fallback_logs_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    model = family_model("olmo2")
    model.config.residual_multiplier = 0.5
    assert create_target(model).kind == "transformers"
    assert "engine transformers: slower than the native step" in caplog.text
    assert "residual_multiplier (0.5) is not supported for olmo2 by the native step" in caplog.text
    with pytest.raises(UserError, match=r"engine native: .*residual_multiplier.*choose engine auto"):
        create_target(model, engine="native")
