"""The files of a draft head: its configuration and its tensors, read without running code from them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from torch import Tensor

from ianvs_specdec.errors import UserError


def find(folder: Path, files: tuple[str, ...], what: str) -> Path:
    """The first of ``files`` that is there. Raises ``UserError`` where none is."""
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"no {what} in {folder}: expected config.json and {' or '.join(files)} there", key="head")
    return path


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """``config.json``. Raises ``UserError`` naming the file."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"the {what} in {folder} cannot be read: there is no config.json", key="head")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", key="head") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object", key="head")
    return config


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """Tensors by name, of safetensors or of PyTorch's format. Raises ``UserError`` naming the file."""
    from safetensors import SafetensorError

    tensors: Any
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors = load_file(path)
        else:
            import torch

            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot read the {what} in {path}: {reason}", key="head") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{path} is not a state dict: expected tensors by name", key="head")
    return tensors
