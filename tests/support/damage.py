"""Damaged copies of model folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


def copy_of(model: Path, folder: Path) -> Path:
    """A copy of ``model``, which replaces ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(model, folder))


def with_weights(model: Path, folder: Path, edit: Callable[[Tensors], object]) -> Path:
    """A copy whose tensors ``edit`` has changed in place."""
    copy_of(model, folder)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def with_config(model: Path, folder: Path, **values: Any) -> Path:
    """A copy with other ``values`` in its config.json. A ``Raw`` value is written verbatim."""
    copy_of(model, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), **values}
    path.write_text(_written(config), encoding="utf-8")
    return folder


class Raw(str):
    """Literal JSON that no Python value yields, such as 1e999."""


def _written(config: Mapping[str, Any]) -> str:
    raw = {name: value for name, value in config.items() if isinstance(value, Raw)}
    text = json.dumps({name: f"<{name}>" if name in raw else value for name, value in config.items()})
    for name, value in raw.items():
        text = text.replace(f'"<{name}>"', value)
    return text
