"""EAGLE's checkpoint formats: both files, both kinds, and an error that names what is wrong."""

from __future__ import annotations

import json

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.drafters.eagle_oracle import CONFIG, HIDDEN, VOCABULARY, random_tensors, save
from tests.support.tiny import tiny_model

EAGLE3 = {**CONFIG, "draft_vocab_size": 15}


def without(name):
    return lambda tensors: tensors.pop(name)


def holding(name, *shape, dtype=torch.float32):
    return lambda tensors: tensors.update({name: torch.zeros(*shape, dtype=dtype)})


def test_the_tensors_tell_the_kinds_apart(tmp_path):
    first = EagleCheckpoint.read(save(tmp_path / "a", random_tensors(CONFIG), CONFIG))
    third = EagleCheckpoint.read(save(tmp_path / "b", random_tensors(EAGLE3, eagle3=True), EAGLE3))
    assert (first.eagle3, first.config.bias, first.config.draft_vocabulary) == (False, True, VOCABULARY)
    assert (third.eagle3, third.config.draft_vocabulary) == (True, 15)


def test_safetensors_come_first_and_leftovers_of_old_checkpoints_are_fine(tmp_path):
    from safetensors.torch import save_file

    tensors = random_tensors(CONFIG)
    save(tmp_path, {}, CONFIG)
    save_file({**tensors, "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert EagleCheckpoint.read(tmp_path).tensors.keys() == tensors.keys()


def test_what_may_be_there_or_not(tmp_path):
    whole = {**CONFIG, "draft_vocab_size": VOCABULARY}
    tensors = random_tensors(whole, eagle3=True)
    assert "d2t" not in EagleCheckpoint.read(save(tmp_path / "a", tensors, whole)).tensors
    tensors |= {
        "d2t": torch.zeros(VOCABULARY, dtype=torch.long),
        "embed_tokens.weight": torch.zeros(VOCABULARY, HIDDEN),
    }
    assert "d2t" in EagleCheckpoint.read(save(tmp_path / "b", tensors, whole)).tensors
    grown = {**CONFIG, "target_hidden_size": 48}
    tensors = random_tensors(grown, eagle3=True) | {"fc.weight": torch.zeros(HIDDEN, 144)}
    assert EagleCheckpoint.read(save(tmp_path / "c", tensors, grown)).config.target_hidden == 48


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            CONFIG,
            without("layers.0.mlp.up_proj.weight"),
            r"lacks the tensor layers\.0\.mlp\.up_proj\.weight.* \[48, 32\]",
        ),
        (CONFIG, without("fc.bias"), r'lacks the tensor fc\.bias.* with "bias": true'),
        ({**CONFIG, "bias": False}, holding("fc.bias", 32), r"holds the tensor fc\.bias, .* an EAGLE head"),
        (CONFIG, holding("fc.weight", 32, 32), r"tensor fc\.weight has shape \[32, 32\].* needs \[32, 64\]"),
        (CONFIG, holding("layers.1.mlp.up_proj.weight", 48, 32), r"holds the tensor layers\.1\.mlp"),
        (CONFIG, holding("lm_head.weight", 24, 32), r"holds the tensor lm_head\.weight"),
        (CONFIG, holding("fc.bias", 32, dtype=torch.int8), r"tensor fc\.bias is of type torch\.int8"),
        ({**CONFIG, "qkv_bias": True}, lambda t: None, r"lacks the tensor layers\.0\.self_attn\.q_proj\.bias"),
        (EAGLE3, without("d2t"), r"lacks the tensor d2t, expected \[15\] in an EAGLE-3 head"),
        (EAGLE3, without("norm.weight"), r"lacks the tensor norm\.weight"),
        (EAGLE3, holding("lm_head.weight", 24, 32), r"lm_head\.weight has shape \[24, 32\].* needs \[15, 32\]"),
        (
            EAGLE3,
            holding("midlayer.self_attn.q_proj.weight", 32, 32),
            r"q_proj\.weight has shape \[32, 32\].*\[32, 64\]",
        ),
        (EAGLE3, lambda t: t["d2t"].add_(20), r"d2t must hold whole numbers .* below 24"),
        (EAGLE3, holding("fc.bias", 32), r"holds the tensor fc\.bias"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, config, change, message):
    tensors = random_tensors({**config, "qkv_bias": False}, eagle3=config is EAGLE3)
    change(tensors)
    save(tmp_path, tensors, config)
    with pytest.raises(UserError, match=message) as caught:
        EagleCheckpoint.read(tmp_path)
    assert str(tmp_path / "pytorch_model.bin") in str(caught.value)
    assert caught.value.key == "head"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"intermediate_size": "big"}, "intermediate_size is 'big', expected a whole number"),
        ({"num_hidden_layers": 2}, "one Llama layer"),
        ({"hidden_act": "gelu"}, "one Llama layer"),
        ({"num_key_value_heads": 3}, "a multiple of num_key_value_heads"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path, config, message):
    save(tmp_path, random_tensors(CONFIG), {**CONFIG, **config})
    with pytest.raises(UserError, match=message) as caught:
        EagleCheckpoint.read(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_wrong_files_are_told(tmp_path):
    with pytest.raises(UserError, match=r"no EAGLE head in .*model\.safetensors or pytorch_model\.bin"):
        drafters.create("eagle", {"head": tmp_path})
    save(tmp_path, random_tensors(CONFIG), CONFIG)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        EagleCheckpoint.read(tmp_path)
    for text, message in (("{", "is not JSON"), ("[1]", "must hold a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=message):
            EagleCheckpoint.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save([1], tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="is not a state dict"):
        EagleCheckpoint.read(tmp_path)
    for name in ("pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(UserError, match=f"cannot read the EAGLE head in .*{name}"):
            EagleCheckpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("eagle3", "overrides", "message"),
    [
        (False, {"hidden_size": 16}, "for a hidden size of 32, the target has 16"),
        (False, {"vocab_size": 25}, "for a vocabulary of 24, the target has 25"),
        (True, {"hidden_size": 16, "num_hidden_layers": 7}, "for a hidden size of 32, the target has 16"),
        (True, {"num_hidden_layers": 6}, "a target of at least 7; this one has 6"),
    ],
)
def test_a_head_for_another_target_is_refused(tmp_path, eagle3, overrides, message):
    config = EAGLE3 if eagle3 else CONFIG
    save(tmp_path, random_tensors(config, eagle3), config)
    target = HuggingFaceTarget(tiny_model(**{"vocab_size": VOCABULARY, **overrides}))
    with pytest.raises(UserError, match=message):
        drafters.create("eagle", {"head": tmp_path}).prepare(target)


def test_a_head_of_another_size_needs_embeddings_of_its_own(tmp_path):
    config = {**CONFIG, "target_hidden_size": 16}
    tensors = random_tensors(config, eagle3=True) | {"fc.weight": torch.zeros(HIDDEN, 48)}
    target = HuggingFaceTarget(tiny_model(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=7))
    with pytest.raises(UserError, match=r"has a hidden size of 32 and no embed_tokens\.weight"):
        drafters.create("eagle", {"head": save(tmp_path / "a", tensors, config)}).prepare(target)
    tensors["embed_tokens.weight"] = torch.ones(VOCABULARY, HIDDEN)
    drafters.create("eagle", {"head": save(tmp_path / "b", tensors, config)}).prepare(target)
