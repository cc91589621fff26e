"""The files of a draft head: its configuration and its tensors, read without running code from them.

torch is imported when tensors are read, and not to look at a head.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.headers import file_headers
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.models.numbers import check_numbers

if TYPE_CHECKING:
    from torch import Tensor

Shapes = dict[str, tuple[int, ...]]
PADDED = ", or where both have one tokenizer and are padded to other sizes, cut or pad the head's rows to the target's"
"""The advice for a vocabulary of another size."""
KINDS = re.compile(r"p-?eagle|eagle|medusa|dflash|dspark|hass|mlp_?speculator|mtp")
"""What a configuration calls a head of its kind."""
SPECULATORS = {"eagle3": "eagle"}
"""Types of heads in the format of ``speculators`` that are read, and their kinds."""
NAMES = {
    "eagle": "an EAGLE head",
    "peagle": "a P-EAGLE head",
    "p-eagle": "a P-EAGLE head",
    "medusa": "a Medusa head",
    "dflash": "a DFlash head",
    "dspark": "a DSpark head",
    "hass": "a HASS head",
    "mtp": "an MTP head",
}
BACKENDS = {"eagle": "EagleSpecDec", "medusa": "MedusaSpecDec", "dflash": "DFlashSpecDec"}


def find(folder: Path, files: tuple[str, ...], what: str) -> Path:
    """The first of ``files`` that is there. Raises ``UserError`` where none is."""
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"no {what} in {folder}: expected config.json and {' or '.join(files)} there", key="head")
    return path


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """``config.json``, its numbers finite and of a possible size; one of ``speculators`` with the keys of its layer at
    the top, as the authors have them. Raises ``UserError`` naming the file, and the format of another kind of head."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"the {what} in {folder} cannot be read: there is no config.json", key="head")
    config = read_object(path, key="head")
    check_numbers(path, config, {}, key="head")
    given = next((key for key in config if key.startswith("speculators_") or key == "transformer_layer_config"), None)
    if given is None:
        stated = f"{config.get('architectures')} {config.get('model_type')}".lower()
        kind = match[0] if (match := KINDS.search(stated)) else own_kind(what)
        if kind != own_kind(what):
            raise _another_kind(path, NAMES.get(kind, "an MLP speculator"), kind, what)
        return config
    named = config.get("speculators_model_type")
    if (read := SPECULATORS.get(str(named))) != own_kind(what):
        raise _another_kind(path, f"a speculators head of type {named}", read or "", what)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict) or not isinstance(config.get("norm_before_residual"), bool):
        reason = "must state transformer_layer_config and norm_before_residual, whose defaults differ between readers"
        raise UserError(f"{path}: a speculators head of type {named} {reason}", key="head")
    return {**config, **layer}


def own_kind(what: str) -> str:
    return what.split()[0].lower()


def _another_kind(path: Path, found: str, kind: str, what: str) -> UserError:
    own = own_kind(what)
    advice = f"use {BACKENDS[kind]}" if kind in BACKENDS and kind != own else "no back end reads it"
    return UserError(f"{path}: {found}, and {BACKENDS[own]} does not read it: {advice}", key="head")


def read_shapes(path: Path, what: str) -> Shapes:
    """Shapes by name, of safetensors or of PyTorch's format, without a look at the numbers. Raises ``UserError`` naming
    the file."""
    if path.suffix == ".safetensors":
        try:
            return {name: header.shape for name, header in file_headers(path).items()}
        except UserError as error:
            raise UserError(f"cannot read the {what} in {path}: {error}", key="head") from error
    shapes = _listed(path, what)
    if not isinstance(shapes, dict) or not all(isinstance(shape, tuple) for shape in shapes.values()):
        raise UserError(f"{path} is not a state dict: expected tensors by name", key="head")
    return shapes


def read_ids(path: Path, vocabulary: int, what: str) -> list[int]:
    """Different token ids below ``vocabulary``, of a list in PyTorch's format. Raises ``UserError`` naming the file."""
    ids = _listed(path, what)
    valid = isinstance(ids, list) and all(type(token) is int and 0 <= token < vocabulary for token in ids)
    if not valid or not ids or len(set(ids)) < len(ids):
        raise UserError(f"{path} must hold a list of different token ids below {vocabulary}", key="head")
    return list(ids)


def _listed(path: Path, what: str) -> Any:
    """What a file of PyTorch's format holds, shapes in place of tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            (listed,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
            return _Listing(io.BytesIO(archive.read(listed))).load()
    except zipfile.BadZipFile as error:
        reason = "the file is damaged or cut off, or not of PyTorch's format since version 1.6"
        raise UserError(f"cannot read the {what} in {path}: {reason}", key="head") from error
    except Exception as error:
        raise UserError(
            f"cannot read the {what} in {path}: the file is damaged, or its pickle holds more than tensors, which "
            "could run code and is not loaded; get the head in the format safetensors, or from whom you trust",
            key="head",
        ) from error


def check_shapes(path: Path, found: Shapes, required: Shapes, optional: Shapes, *, kind: str, source: str) -> None:
    """Raise ``UserError`` that names the tensor which is missing, unknown or of the wrong shape in a head of this
    ``kind``; the shapes follow from ``source``."""
    for name, shape in required.items():
        if name not in found:
            raise UserError(f"{path} lacks the tensor {name}, expected {list(shape)} in {kind}", key="head")
    for name, shape in found.items():
        wanted = required.get(name) or optional.get(name)
        if wanted is None:
            raise UserError(f"{path} holds the tensor {name}, which has no place in {kind}", key="head")
        if shape != wanted:
            reason = f"tensor {name} has shape {list(shape)}, {source} needs {list(wanted)}"
            raise UserError(f"{path}: {reason}", key="head")


class _Listing(pickle.Unpickler):
    """A pickle of tensors, read as their shapes. Nothing that it names is imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, *others: tuple(shape),
            ("torch._utils", "_rebuild_parameter"): lambda shape, *others: shape,
        }
        return name if module == "torch" else known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """The numbers of a tensor."""


def read_tensors(path: Path, what: str, whole: Collection[str] = ()) -> dict[str, Tensor]:
    """Tensors by name, of safetensors or of PyTorch's format. Those in ``whole`` may be of whole numbers. Raises
    ``UserError`` naming the file, and the tensor that is of another type or holds NaN or infinity."""
    from ianvs_specdec.models.loading import check_finite

    read_shapes(path, what)
    try:
        tensors: dict[str, Tensor] = _read(path)
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() and name not in whole:
                raise UserError(f"tensor {name} is of type {tensor.dtype}, expected floating point")
        check_finite(tensors.items())
    except Exception as error:
        # Damaged files raise whatever their reader has.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot read the {what} in {path}: {reason}", key="head") from error
    return tensors


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)
