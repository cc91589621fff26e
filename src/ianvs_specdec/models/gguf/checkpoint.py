"""The weights of a Hugging Face folder as NumPy arrays, mapped from the files: nothing is read before it is asked for.

Format: https://huggingface.co/docs/safetensors (a header of JSON, its length in the first 8 bytes, then the data).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.headers import headers

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""NumPy's types; bfloat16, which NumPy does not have, is mapped as the upper halves of float32."""


class Checkpoint:
    """All tensors of a folder with ``*.safetensors`` files, by name.

    ``shapes`` has them all. Raises UserError for a folder without such files and for files that are damaged.
    """

    def __init__(self, folder: Path) -> None:
        found = headers(folder)
        if not found:
            raise UserError(f"the folder {folder} has no weights in safetensors format (model*.safetensors)")
        self.shapes = {name: header.shape for name, header in found.items()}
        self._maps: dict[str, tuple[np.ndarray[Any, Any], bool]] = {}
        for file in dict.fromkeys(header.file for header in found.values()):
            data = np.memmap(file, dtype=np.uint8, mode="r")
            start = 8 + int.from_bytes(data[:8].tobytes(), "little")
            for name, entry in json.loads(data[8:start].tobytes()).items():
                if name not in found:
                    continue
                if (kind := entry["dtype"]) not in DTYPES:
                    raise UserError(
                        f"{file}: the tensor {name} has type {kind}, not one of {', '.join(DTYPES)}: export the model "
                        "as it was before it was quantized"
                    )
                begin, end = (start + offset for offset in entry["data_offsets"])
                self._maps[name] = data[begin:end].view(DTYPES[kind]).reshape(entry["shape"]), kind == "BF16"

    def rows(self, name: str, rows: np.ndarray[Any, Any] | slice) -> np.ndarray[Any, Any]:
        mapped, bfloat16 = self._maps[name]
        taken = np.ascontiguousarray(mapped[rows])
        if bfloat16:
            return (taken.astype(np.uint32) << 16).view(np.float32)
        return taken.astype(np.float32)
