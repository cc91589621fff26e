"""Model folders in the layout that the published packages read, and those that they cannot run."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from ianvs_specdec.backends.official.layout import convert_head, convert_model


def test_models_are_handed_over_in_the_layout_of_their_time(tmp_path):
    model, head = tmp_path / "model", tmp_path / "head"
    for folder in (model, head):
        folder.mkdir()
        config = {"model_type": "llama", "dtype": "bfloat16", "hidden_size": 8, "pad_token_id": None}
        rope = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
        (folder / "config.json").write_text(json.dumps({**config, **rope}))
        save_file({"fc.weight": torch.arange(4.0)}, folder / "model.safetensors")
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend", "eos_token": "<e>"}')

    made = convert_model(model, tmp_path / "old", [7])
    config = json.loads((made / "config.json").read_text())
    assert (config["rope_theta"], config["rope_scaling"], config["torch_dtype"]) == (500.0, None, "bfloat16")
    assert (made / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert json.loads((made / "generation_config.json").read_text()) == {"eos_token_id": 7, "pad_token_id": 0}
    assert json.loads((made / "tokenizer_config.json").read_text())["eos_token"] == "<e>"
    made = convert_head(head, tmp_path / "old-head")
    tensors = torch.load(made / "pytorch_model.bin", weights_only=True)
    assert tensors["fc.weight"].tolist() == [0, 1, 2, 3]
