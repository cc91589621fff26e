"""Names, shapes and types of tensors, from the headers of safetensors files. No weights are read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.json_files import read_object

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of unquantized weights in safetensors."""
NAMED = 3
"""Number of tensors that a message names."""


@dataclass(frozen=True)
class Header:
    """The header of one tensor. ``kind``: its type in safetensors."""

    shape: tuple[int, ...]
    kind: str
    file: Path

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def headers(folder: Path, *, key: str | None = None) -> dict[str, Header]:
    """All tensors of a model folder by name; empty without a safetensors file that transformers would load.

    Raises UserError with ``key`` for a missing, damaged or truncated file.
    """
    if (folder / WEIGHTS).is_file():
        return file_headers(folder / WEIGHTS, key=key)
    if not (folder / INDEX).is_file():
        return {}
    listed = read_object(folder / INDEX, key=key).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise UserError(f"{folder / INDEX}: weight_map must map each tensor to its file", key=key)
    found: dict[str, Header] = {}
    for name in dict.fromkeys(listed.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(f"{folder / INDEX}: {name!r} is not the name of a file in the same folder", key=key)
        found |= file_headers(folder / name, key=key)
    if lost := [tensor for tensor, file in listed.items() if tensor not in found or found[tensor].file.name != file]:
        raise UserError(f"{folder / INDEX}: {counted(lost, 'is', 'are')} not in the file that it names", key=key)
    return found


def file_headers(path: Path, *, key: str | None = None) -> dict[str, Header]:
    """The tensors of one safetensors file. Raises UserError for a missing, damaged or truncated file."""
    from safetensors import safe_open

    if not path.is_file():
        raise UserError(f"there is no file {path} with weights", key=key)
    try:
        # safetensors checks that the header is complete and covers the whole file.
        with safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
            return {name: Header(tuple(part.get_shape()), part.get_dtype(), path) for name, part in parts.items()}
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or error}", key=key) from error
    except Exception as error:
        # safetensors and its JSON decoder raise their own exceptions.
        raise UserError(f"{path} is damaged or cut off ({error}): copy or download it again", key=key) from error


def counted(names: Iterable[str], one: str = "", many: str = "") -> str:
    """The first tensor names and the number of the others, followed by the verb for ``one`` or ``many``."""
    listed = sorted(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    text = f"the tensor{'' if len(listed) == 1 else 's'} {', '.join(listed[:NAMED])}{more}"
    return f"{text} {one if len(listed) == 1 else many}".rstrip()
