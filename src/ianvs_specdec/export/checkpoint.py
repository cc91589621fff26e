"""The weights of a Hugging Face folder as NumPy arrays, mapped from the files: nothing is read before it is asked for.

Format: https://huggingface.co/docs/safetensors (a header of JSON, its length in the first 8 bytes, then the data).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.checkpoints.documents import read_object
from ianvs_specdec.errors import UserError

HEADER_LIMIT = 100 << 20
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""NumPy's types; bfloat16, which NumPy does not have, is mapped as the upper halves of float32."""


class Checkpoint:
    """All tensors of a folder with ``*.safetensors`` files, by name.

    ``shapes`` has them all. Raises UserError for a folder without such files and for files that are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._maps: dict[str, tuple[np.ndarray[Any, Any], bool]] = {}
        files = sorted(folder.glob("model*.safetensors"))
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = [folder / name for name in sorted(set(read_object(index).get("weight_map", {}).values()))]
        if not files:
            raise UserError(f"the folder {folder} has no weights in safetensors format (model*.safetensors)")
        for file in files:
            try:
                self._map(file)
            except OSError as error:
                raise UserError(f"cannot read the weights {file}: {error.strerror or error}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"the weights {file} are damaged: {error}") from error

    def _map(self, file: Path) -> None:
        data = np.memmap(file, dtype=np.uint8, mode="r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        if not 2 <= size <= min(HEADER_LIMIT, len(data) - 8):
            raise ValueError("the length of the header is impossible")
        header = json.loads(data[8 : 8 + size].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in DTYPES:
                raise UserError(
                    f"{file}: the tensor {name} has type {entry['dtype']}, not one of {', '.join(DTYPES)}: export the "
                    "model as it was before it was quantized"
                )
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            flat = data[begin:end].view(DTYPES[entry["dtype"]])
            self.shapes[name] = tuple(entry["shape"])
            self._maps[name] = flat.reshape(entry["shape"]), entry["dtype"] == "BF16"

    def rows(self, name: str, rows: np.ndarray[Any, Any] | slice) -> np.ndarray[Any, Any]:
        """Some rows of a tensor as float32, shape ``[rows, ...]``."""
        mapped, bfloat16 = self._maps[name]
        taken = np.ascontiguousarray(mapped[rows])
        if bfloat16:
            return (taken.astype(np.uint32) << 16).view(np.float32)
        return taken.astype(np.float32)
