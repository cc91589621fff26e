"""EAGLE's checkpoint formats: both files, both kinds, and errors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.medusa.heads import read as read_medusa
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.drafters.eagle_oracle import CONFIG, HIDDEN, VOCABULARY, random_tensors, save
from tests.support.damage import with_weights
from tests.support.tiny import tiny_model as random_model

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


def test_safetensors_have_priority_and_old_leftovers_are_ignored(tmp_path):
    from safetensors.torch import save_file

    tensors = random_tensors(CONFIG)
    save(tmp_path, {}, CONFIG)
    save_file({**tensors, "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert EagleCheckpoint.read(tmp_path).tensors.keys() == tensors.keys()


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            CONFIG,
            without("layers.0.mlp.up_proj.weight"),
            r"lacks the tensor layers\.0\.mlp\.up_proj\.weight.* \[48, 32\]",
        ),
        (CONFIG, holding("fc.weight", 32, 32), r"tensor fc\.weight has shape \[32, 32\].* needs \[32, 64\]"),
        (CONFIG, holding("fc.bias", 32, dtype=torch.int8), r"tensor fc\.bias is of type torch\.int8"),
        ({**CONFIG, "qkv_bias": True}, lambda t: None, r"lacks the tensor layers\.0\.self_attn\.q_proj\.bias"),
        (EAGLE3, without("d2t"), r"lacks the tensor d2t, expected \[15\] in an EAGLE-3 head"),
        (EAGLE3, lambda t: t["d2t"].add_(20), r"d2t must hold whole numbers .* below 24"),
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
        ({"intermediate_size": "big"}, "intermediate_size is 'big', expected a whole number"),
        ({"num_hidden_layers": 2}, "one Llama layer"),
        ({"head_dim": 10**100}, "head_dim"),
        ({"vocab_size": float("inf")}, "vocab_size"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path, config, message):
    save(tmp_path, random_tensors(CONFIG), {**CONFIG, **config})
    with pytest.raises(UserError, match=message) as caught:
        EagleCheckpoint.read(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_wrong_files_are_reported(tmp_path):
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
        (True, {"num_hidden_layers": 6}, "a target of at least 7; this one has 6"),
    ],
)
def test_a_head_for_another_target_is_refused(tmp_path, eagle3, overrides, message):
    config = EAGLE3 if eagle3 else CONFIG
    save(tmp_path, random_tensors(config, eagle3), config)
    target = HuggingFaceTarget(random_model(**{"vocab_size": VOCABULARY, **overrides}))
    with pytest.raises(UserError, match=message):
        drafters.create("eagle", {"head": tmp_path}).prepare(target)


def test_a_head_of_another_size_needs_embeddings_of_its_own(tmp_path):
    config = {**CONFIG, "target_hidden_size": 16}
    tensors = random_tensors(config, eagle3=True) | {"fc.weight": torch.zeros(HIDDEN, 48)}
    target = HuggingFaceTarget(random_model(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=7))
    with pytest.raises(UserError, match=r"has a hidden size of 32 and no embed_tokens\.weight"):
        drafters.create("eagle", {"head": save(tmp_path / "a", tensors, config)}).prepare(target)
    tensors["embed_tokens.weight"] = torch.ones(VOCABULARY, HIDDEN)
    drafters.create("eagle", {"head": save(tmp_path / "b", tensors, config)}).prepare(target)


def medusa(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def medusa_tensors(heads: int = 2) -> dict[str, torch.Tensor]:
    parts = {"0.linear.weight": (4, 4), "0.linear.bias": (4,), "1.weight": (6, 4)}
    return {f"{head}.{name}": torch.ones(shape) for head in range(heads) for name, shape in parts.items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_heads_with_nan_are_refused(tmp_path: Path, value: float) -> None:
    name, tensors = "layers.0.mlp.up_proj.weight", random_tensors(CONFIG)
    tensors[name][3, 3] = value
    with pytest.raises(UserError, match=f"{name} holds numbers that are not finite") as caught:
        EagleCheckpoint.read(save(tmp_path, tensors, CONFIG))
    assert caught.value.key == "head"


@pytest.mark.parametrize("key", ["medusa_num_heads", "medusa_num_layers"])
@pytest.mark.parametrize("value", [10**9, float("inf"), 2.5])
def test_absurd_head_counts_are_refused_quickly(tmp_path: Path, key: str, value: float) -> None:
    folder = medusa(tmp_path, medusa_tensors(), **{key: value})
    started = time.process_time()
    with pytest.raises(UserError, match=f"{key}|lacks the tensor") as caught:
        read_medusa(folder, 4, 6)
    assert time.process_time() - started < 5
    assert str(folder) in str(caught.value)


class _Trap:
    """Code that pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_pickles_with_code_are_refused(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "touched"
    save(tmp_path, random_tensors(CONFIG), CONFIG)
    file = tmp_path / {"eagle": "pytorch_model.bin", "medusa": "medusa_lm_head.pt"}[name]
    torch.save({"fc.weight": _Trap(trap)}, file)
    with pytest.raises(UserError, match=r"could run code and is not loaded.*safetensors") as caught:
        read_medusa(tmp_path, 4, 6) if name == "medusa" else EagleCheckpoint.read(tmp_path)
    assert str(file) in str(caught.value)
    for hint in ("weights_only", "torch.load", "add_safe_globals", "allowlist"):
        assert hint not in str(caught.value)
    assert not trap.exists()


def test_incomplete_draft_models_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    target, name = HuggingFaceTarget(random_model("llama", vocab_size=258)), "model.layers.1.mlp.up_proj.weight"
    drafters.create("draft_model", {"draft": tiny_model}).prepare(target)
    for place, damage in (("a", lambda all_: all_.pop(name)), ("b", lambda all_: all_[name].fill_(torch.nan))):
        folder = with_weights(tiny_model, tmp_path / place, damage)
        with pytest.raises(UserError, match=f"^cannot load the draft model {folder}: .*{name}") as caught:
            drafters.create("draft_model", {"draft": folder}).prepare(target)
        assert caught.value.key == "draft"
