"""Model folders in the layout that the published packages read, and those that they cannot run."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from ianvs_specdec.backends.official.layout import old_head, old_model
from ianvs_specdec.common.errors import UserError


def test_models_are_handed_over_in_the_layout_of_their_time(tmp_path):
    model, head = tmp_path / "model", tmp_path / "head"
    for folder in (model, head):
        folder.mkdir()
        config = {"model_type": "llama", "dtype": "bfloat16", "hidden_size": 8, "pad_token_id": None}
        rope = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
        (folder / "config.json").write_text(json.dumps({**config, **rope}))
        save_file({"fc.weight": torch.arange(4.0)}, folder / "model.safetensors")
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend", "eos_token": "<e>"}')

    made = old_model(model, tmp_path / "old", [7])
    config = json.loads((made / "config.json").read_text())
    assert (config["rope_theta"], config["rope_scaling"], config["torch_dtype"]) == (500.0, None, "bfloat16")
    assert (made / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert json.loads((made / "generation_config.json").read_text()) == {"eos_token_id": 7, "pad_token_id": 0}
    assert json.loads((made / "tokenizer_config.json").read_text())["eos_token"] == "<e>"
    made = old_head(head, tmp_path / "old-head")
    tensors = torch.load(made / "pytorch_model.bin", weights_only=True)
    assert tensors["fc.weight"].tolist() == [0, 1, 2, 3]


def test_models_the_packages_cannot_run_are_refused(tmp_path):
    def folder(**config):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
        return tmp_path

    with pytest.raises(UserError, match="Llama only, this is 'qwen2'"):
        old_model(folder(model_type="qwen2"), tmp_path / "old", [])
    with pytest.raises(UserError, match=r"config\.json: position encoding 'llama3'"):
        old_model(folder(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5}), tmp_path / "old", [])
    with pytest.raises(UserError, match="position encoding 'linear'"):
        old_model(folder(rope_scaling={"type": "linear", "factor": 2.0}), tmp_path / "old", [])
    with pytest.raises(UserError, match=r"expected config\.json and model\.safetensors or"):
        old_head(folder(), tmp_path / "old")
    save_file({"midlayer.norm.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="EAGLE-3"):
        old_head(folder(), tmp_path / "old")
    with pytest.raises(UserError, match=r"no config\.json"):
        old_head(tmp_path / "nowhere", tmp_path / "old")
