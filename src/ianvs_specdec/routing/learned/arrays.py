"""Arrays of a router's folder, which may be from anybody."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 4 << 30
"""Of all arrays of a file together. Compressed, they may be a thousand times as large as the file."""


def read_array(path: Path) -> NDArray[Any]:
    """The array of a ``.npy`` file. Raises OSError, or ValueError for one that is damaged."""
    with _reading(path):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a ``.npz`` file, all numbers finite. Raises OSError, or ValueError for one that is damaged."""
    # By its path numpy would leave a file open that is no archive.
    with path.open("rb") as opened, _reading(path):
        with zipfile.ZipFile(opened) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"it holds {size} bytes of arrays, more than {MOST_BYTES}")
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"the array {name} holds numbers that are not finite (NaN or infinity)")
    return arrays


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except MemoryError as error:
        raise ValueError(f"{path.name} claims a shape that does not fit into memory") from error
    except Exception as error:
        # Damaged files raise whatever their reader has, the decompressor's own exceptions among them.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path.name} is damaged: {reason}") from error
