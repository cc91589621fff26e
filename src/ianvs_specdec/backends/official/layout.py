"""Conversion of model folders for the packages' transformers versions of 2023 and 2024.

Weights and tokenizer are linked; ``config.json`` gets the old keys, and a head becomes ``pytorch_model.bin``.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.eagle.layout import FILES, WHAT, is_eagle3
from ianvs_specdec.drafters.tensors import find, read_shapes, read_tensors
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.models.rotary import rotary

COPIED = ("*.safetensors", "*.safetensors.index.json", "tokenizer.json", "tokenizer.model")


def check_model(model: Path) -> dict[str, Any]:
    """The configuration of ``model`` with the old keys. Raises UserError for one that the packages do not support."""
    config = _config(model, "model")
    if config.get("model_type") != "llama":
        reason = f"{model}: eagle-llm and lade run Llama only, this is {config.get('model_type')!r}"
        raise UserError(reason, key="model")
    return config


def convert_model(model: Path, folder: Path, eos_ids: list[int]) -> Path:
    """Write ``model`` to ``folder``. Raises UserError as ``check_model`` does."""
    config = check_model(model)
    folder = _fresh(folder)
    for path in sorted(path for pattern in COPIED for path in model.glob(pattern)):
        _link(path, folder / path.name)
    _write(folder / "config.json", config)
    pad = config.get("pad_token_id")
    stops = eos_ids[0] if len(eos_ids) == 1 else eos_ids or None
    _write(folder / "generation_config.json", {"eos_token_id": stops, "pad_token_id": 0 if pad is None else pad})
    # eagle-llm takes the end token from its tokenizer, whose class must be an old one.
    settings = model / "tokenizer_config.json"
    eos = read_object(settings, key="model").get("eos_token") if settings.is_file() else None
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos})
    return folder


def check_head(head: Path) -> dict[str, Any]:
    """The configuration of ``head`` with the old keys. Raises UserError unless it looks like an EAGLE-1 or 2 head."""
    config = _config(head, "head")
    names = read_shapes(find(head, FILES, WHAT), WHAT)
    if is_eagle3(names):
        reason = f"{head} is a head of EAGLE-3, which eagle-llm 1.2.1 does not know: give one of EAGLE-1 or 2"
        raise UserError(reason, key="head")
    if "fc.weight" not in names:
        raise UserError(f"{head} is no EAGLE head: it has no tensor fc.weight", key="head")
    return config


def convert_head(head: Path, folder: Path) -> Path:
    """Write ``head`` to ``folder``. Raises UserError as ``check_head`` does."""
    import torch

    config = check_head(head)
    tensors = read_tensors(find(head, FILES, WHAT), WHAT)
    folder = _fresh(folder)
    torch.save(tensors, folder / "pytorch_model.bin")
    _write(folder / "config.json", config)
    return folder


def _config(folder: Path, key: str) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} has no config.json: give the folder of a model in Hugging Face format", key=key)
    config = read_object(path, key=key)
    rope = rotary(config)
    if rope["rope_type"] != "default":
        reason = f"{path}: position encoding {rope['rope_type']!r}: eagle-llm and lade are run on plain ones only"
        raise UserError(reason, key=key)
    config.pop("rope_parameters", None)
    config["rope_theta"] = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype", config.get("torch_dtype", "float32"))
    return config


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _link(source: Path, link: Path) -> None:
    try:
        os.symlink(source.resolve(), link)
    except OSError:
        shutil.copyfile(source, link)
