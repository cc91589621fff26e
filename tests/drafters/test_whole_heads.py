"""Draft heads and draft models are read whole or refused, and nothing in their files is run."""

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
from ianvs_specdec.drafters.medusa.heads import MedusaHeads
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.drafters.eagle_oracle import CONFIG, random_tensors, save
from tests.support.damage import with_config, with_weights
from tests.support.tiny import tiny_model as random_model


def medusa(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read_medusa(folder: Path) -> MedusaHeads:
    return MedusaHeads.load(folder, 4, 6, torch.float32, torch.device("cpu"), torch.nn.Identity())


def medusa_tensors(heads: int = 2) -> dict[str, torch.Tensor]:
    parts = {"0.linear.weight": (4, 4), "0.linear.bias": (4,), "1.weight": (6, 4)}
    return {f"{head}.{name}": torch.ones(shape) for head in range(heads) for name, shape in parts.items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("eagle3", [False, True])
def test_a_head_with_numbers_that_are_none_is_refused(tmp_path: Path, value: float, eagle3: bool) -> None:
    config = {**CONFIG, "draft_vocab_size": 15} if eagle3 else CONFIG
    name = f"{'midlayer' if eagle3 else 'layers.0'}.mlp.up_proj.weight"
    tensors = random_tensors(config, eagle3=eagle3)
    tensors[name][3, 3] = value
    with pytest.raises(UserError, match=f"{name} holds numbers that are not finite") as caught:
        EagleCheckpoint.read(save(tmp_path, tensors, config))
    assert caught.value.key == "head"


@pytest.mark.parametrize("key", ["medusa_num_heads", "medusa_num_layers"])
@pytest.mark.parametrize("value", [10**5, 10**9, 10**100, float("inf"), float("nan"), 2.5, -1])
def test_absurd_numbers_of_heads_take_no_time(tmp_path: Path, key: str, value: float) -> None:
    folder = medusa(tmp_path, medusa_tensors(), **{key: value})
    started = time.process_time()
    with pytest.raises(UserError, match=f"{key}|lacks the tensor") as caught:
        read_medusa(folder)
    assert time.process_time() - started < 5
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("value", [10**9, 10**100, float("inf"), 1.5, 0, -4])
def test_absurd_sizes_of_an_eagle_head_are_named(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        EagleCheckpoint.read(save(tmp_path, random_tensors(CONFIG), {**CONFIG, key: value}))
    assert key in str(caught.value)
    assert caught.value.key == "head"


class _Trap:
    """What pickle would call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_a_pickle_with_more_than_tensors_is_refused_without_a_hint_how_to_run_it(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "touched"
    save(tmp_path, random_tensors(CONFIG), CONFIG)
    file = tmp_path / {"eagle": "pytorch_model.bin", "medusa": "medusa_lm_head.pt"}[name]
    torch.save({"fc.weight": _Trap(trap)}, file)
    with pytest.raises(UserError, match=r"could run code and is not loaded.*safetensors") as caught:
        read_medusa(tmp_path) if name == "medusa" else EagleCheckpoint.read(tmp_path)
    assert str(file) in str(caught.value)
    for hint in ("weights_only", "torch.load", "add_safe_globals", "allowlist"):
        assert hint not in str(caught.value)
    assert not trap.exists()


def test_a_draft_model_is_loaded_whole_or_refused(tiny_model: Path, tmp_path: Path) -> None:
    target = HuggingFaceTarget(random_model("llama", vocab_size=258))

    def prepare(folder: Path) -> None:
        drafters.create("draft_model", {"draft": folder}).prepare(target)

    prepare(tiny_model)
    name = "model.layers.1.mlp.up_proj.weight"
    for folder, told in (
        (with_weights(tiny_model, tmp_path / "a", lambda tensors: tensors.pop(name)), name),
        (with_weights(tiny_model, tmp_path / "b", lambda tensors: tensors[name].fill_(torch.nan)), name),
        (with_config(tiny_model, tmp_path / "c", num_hidden_layers=10**9), "num_hidden_layers"),
        (with_config(tiny_model, tmp_path / "d", num_hidden_layers=3), "model.layers.2."),
    ):
        with pytest.raises(UserError, match=told) as caught:
            prepare(folder)
        assert str(caught.value).startswith(f"cannot load the draft model {folder}: ")
        assert caught.value.key == "draft"
