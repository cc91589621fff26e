"""The families that the native step computes: transformers' numbers, and a refusal of what it would compute wrongly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, decode
from ianvs_specdec.engine.contracts import Prompt
from ianvs_specdec.models.layout import check_model
from ianvs_specdec.targets.native.target import NativeTarget, fits_native
from ianvs_specdec.targets.registry import target_of
from tests.support.families import FAMILIES, TURN, WINDOW, family_model
from tests.support.tiny import Guesser, random_tree

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
    assert fits_native(model) is None
    target, rng, tokens = target_of(model), random.Random(4), list(PROMPT)
    assert target.kind == "native"
    sequence = target.open()
    (prompt,) = target.step([(sequence, Prompt(tokens))])
    assert_close(prompt.logits[0], after(model, tokens))
    for tree in (TokenTree.chain(7, range(8, 20)), random_tree(rng, 3 * WINDOW)):
        (output,) = target.step([(sequence, tree)])
        for node in range(len(tree)):
            assert_close(output.logits[node], after(model, tokens + [tree.tokens[i] for i in tree.path_to(node)]))
        path = tree.path_to(len(tree) - 1)
        sequence.commit(path)
        tokens += [tree.tokens[i] for i in path]


@pytest.mark.parametrize("window", [1, 2, 64, 65, 100])
def test_windows_of_any_width_end_where_they_should(window: int) -> None:
    model = family_model("gemma2", sliding_window=window)
    target, tokens = NativeTarget(model), [3 + i * i % 60 for i in range(150)]
    sequence = target.open()
    target.step([(sequence, Prompt(tokens[:-1])), (other := target.open(), Prompt(tokens))])
    for tree in (TokenTree.chain(tokens[-1], range(5, 35)), random_tree(random.Random(window), 30)):
        (output,) = target.step([(sequence, tree)])
        for node in range(0, len(tree), 4):
            path = [tree.tokens[i] for i in tree.path_to(node)]
            assert_close(output.logits[node], after(model, tokens[:-1] + path))
    (output,) = target.step([(other, TokenTree.chain(5))])
    assert_close(output.logits[0], after(model, [*tokens, 5]))


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_are_those_of_transformers(name: str) -> None:
    model = family_model(name)
    with torch.inference_mode():
        states = model(torch.tensor([PROMPT]), output_hidden_states=True, use_cache=False).hidden_states
    target, features = NativeTarget(model), (0, 2, -1)
    (output,) = target.step([(target.open(features), Prompt(PROMPT))])
    for feature, got in zip(features, output.hidden, strict=True):
        torch.testing.assert_close(got, states[feature][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_output_is_the_targets_own_whatever_is_drafted(name: str, kind: str) -> None:
    dtype, quantization = KINDS[kind]
    target = NativeTarget(family_model(name).to(dtype), quantization=quantization)
    sampling = Sampling(max_tokens=TURN)
    # It ends behind the length at which rotations change.
    prompt = PROMPT[: TURN // 2]
    plain = drafters.create("autoregressive")
    wanted = decode(target, plain, lengths.create("fixed:0"), prompt, sampling, eos_ids=[]).token_ids
    for drafter in (Guesser(wanted, 1), Guesser(wanted, 2, chains_only=True), drafters.create("prompt_lookup")):
        result = decode(target, drafter, lengths.create("fixed:6"), prompt, sampling, eos_ids=[])
        assert result.token_ids == wanted
    if kind == "float32":
        tokens = prompt + wanted
        assert wanted == [int(after(target.model, tokens[:end]).argmax()) for end in range(len(prompt), len(tokens))]


def test_a_sequence_turns_at_a_length_and_back() -> None:
    model = family_model("phi3-longrope")
    target = NativeTarget(model)
    sequence = target.open((1, -1))
    target.step([(sequence, Prompt(PROMPT[:20]))])
    before = sequence.snapshot()
    for _ in range(2):
        for end in (TURN - 1, TURN, TURN + 5):
            tokens = PROMPT[:end]
            (output,) = target.step([(sequence, Prompt(tokens[sequence.length :]))])
            assert_close(output.logits[0], after(model, tokens))
        sequence.restore(before)
        assert len(sequence.kept) == 20


def test_a_tree_may_go_beyond_the_length_at_which_a_sequence_turns() -> None:
    model = family_model("phi3-longrope")
    target, tokens = NativeTarget(model), PROMPT[: TURN - 3]
    sequence, alone = target.open((1, -1)), target.open((1, -1))
    for each in (sequence, alone):
        target.step([(each, Prompt(tokens))])
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
        target.step([(alone, Prompt([tree.tokens[i] for i in path]))])


@pytest.mark.parametrize("succeeding", [0, 1])
def test_without_memory_to_turn_a_sequence_is_as_before(monkeypatch: pytest.MonkeyPatch, succeeding: int) -> None:
    model = family_model("phi3-longrope")
    target, tokens = NativeTarget(model), PROMPT[:TURN]
    sequence, step = target.open(), target.native.step
    target.step([(sequence, Prompt(tokens))])
    before, calls = sequence.snapshot(), iter(range(10))

    def scarce(*args: Any, **settings: Any) -> Any:
        if next(calls) >= succeeding:
            raise MemoryError
        return step(*args, **settings)

    monkeypatch.setattr(target.native, "step", scarce)
    with pytest.raises(MemoryError):
        target.step([(sequence, TokenTree.chain(5))])
    monkeypatch.undo()
    sequence.restore(before)
    for token in (5, 6):
        (output,) = target.step([(sequence, TokenTree.chain(token))])
        sequence.commit([0])
        tokens = [*tokens, token]
        assert_close(output.logits[0], after(model, tokens))


FLAGS: list[tuple[str, str, Any]] = [
    ("granite", "hidden_act", "relu"),
    ("smollm3", "hidden_act", "gelu"),
    ("gemma2", "hidden_activation", "gelu"),
    ("gemma2", "use_bidirectional_attention", True),
    ("gemma3", "attn_logit_softcapping", 20.0),
    ("gemma3", "use_bidirectional_attention", True),
    ("olmo2", "sliding_window", 4),
    ("olmo2", "residual_multiplier", 0.5),
    ("olmoe", "clip_qkv", 1.0),
    ("mixtral", "norm_topk_prob", True),
    ("mixtral", "n_shared_experts", 1),
    ("qwen3-moe", "shared_expert_intermediate_size", 16),
    ("qwen3-moe", "routed_scaling_factor", 2.5),
    ("phi3", "attn_logit_softcapping", 20.0),
    ("phi3", "full_attn_mod", 2),
    ("mistral", "layer_types", ["full_attention"] * 4),
    ("mistral", "attention_chunk_size", 8),
    ("mistral", "rope_parameters", {"factor": 2.0, "rope_theta": 10000.0, "rope_type": "dynamic"}),
    ("qwen2", "layer_types", ["chunked_attention"] * 4),
    ("qwen2", "use_mrope", True),
    ("qwen2", "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}),
    ("qwen3", "attn_output_gate", True),
    ("qwen3", "final_logit_softcapping", 30.0),
    ("granite", "normalization_function", "layernorm"),
    ("granite", "rope_parameters", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("granite", "position_embedding_type", "nope"),
    ("smollm3", "qk_norm", True),
    ("smollm3", "logit_scale", 0.1),
    ("gemma3", "altup_num_inputs", 4),
    ("gemma2", "query_pre_attn_scalar", -1),
]


@pytest.mark.parametrize(("name", "key", "value"), FLAGS)
def test_a_flag_that_is_not_known_is_refused_by_name(name: str, key: str, value: Any) -> None:
    model = family_model(name)
    setattr(model.config, key, value)
    # Of a rotary embedding the last of its keys is at fault.
    named = list(value)[-1] if isinstance(value, dict) else key
    assert named in str(fits_native(model))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_changes_nothing_is_not_refused(name: str) -> None:
    model = family_model(name)
    for key, value in {"attention_dropout": 0.1, "use_cache": False, "auto_map": {"x": "y"}, "is_moe": False}.items():
        setattr(model.config, key, value)
    assert fits_native(model) is None


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_the_family_are_held_against_their_configuration(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    model.save_pretrained(tmp_path)
    check_model(tmp_path, what="the model")
    if model.config.model_type in ("mixtral", "qwen3_moe", "olmoe"):
        return
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "intermediate_size": 60}))
    with pytest.raises(UserError, match=r"the tensor model.layers.0.mlp.down_proj.weight .* asks for \[32, 60\]"):
        check_model(tmp_path, what="the model")


def test_a_model_that_falls_back_says_why(caplog: pytest.LogCaptureFixture) -> None:
    model = family_model("olmo2")
    model.config.residual_multiplier = 0.5
    assert target_of(model).kind == "transformers"
    assert "engine transformers: slower than the native step" in caplog.text
    assert "residual_multiplier (0.5) is not supported for olmo2 by the native step" in caplog.text
    with pytest.raises(UserError, match=r"engine native: .*residual_multiplier.*choose engine auto"):
        target_of(model, engine="native")
