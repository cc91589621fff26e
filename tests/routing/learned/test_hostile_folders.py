"""Damaged and hostile router folders: one message that names the file."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.learned.folder import TrainedRouter
from tests.support.damage import with_weights
from tests.support.paths import EXAMPLE

DEEP = "[" * 100_000 + "]" * 100_000
SKILLS, ENCODER = EXAMPLE / "models" / "router-skills", EXAMPLE / "models" / "router"


def lying_npy(shape: tuple[int, ...]) -> bytes:
    """An array of two numbers with a larger shape in its header."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(16)


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def nan_arrays(folder: Path) -> None:
    arrays = dict(np.load(folder / "text.npz"))
    arrays["weights"] = np.full_like(arrays["weights"], np.nan)
    np.savez(folder / "text.npz", **arrays)


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def setting(**values: Any) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        path = folder / "router.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "router.json").unlink(), "there is no router.json"),
        (write("router.json", DEEP), "router.json"),
        (write("text.json", DEEP), "text.json"),
        (write("text.json", '{"format": 1, "surface": 5}'), "cannot be read"),
        (write("training_queries.npy", lying_npy((1 << 30, 1 << 33))), "training_queries.npy"),
        (write("text.npz", archive(idf=lying_npy((1 << 50,)))), "text.npz"),
        (write("text.npz", b"PK\x03\x04 nonsense"), "text.npz"),
        (nan_arrays, "weights has numbers that are not finite"),
        (setting(threshold=float("nan")), "$.threshold"),
        (setting(threshold=True), "$.threshold"),
        (setting(calibration={"slope": float("inf"), "offset": 0}), "$.calibration.slope"),
    ],
)
def test_a_hostile_folder_is_one_message(tmp_path: Path, spoil: Callable[[Path], Any], told: str) -> None:
    folder = Path(shutil.copytree(SKILLS, tmp_path / "router"))
    spoil(folder)
    with pytest.raises(UserError) as caught:
        TrainedRouter.load(folder)
    assert told in str(caught.value)
    assert str(folder) in str(caught.value)
    assert caught.value.key == "path"


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.routing.learned.folder.MAX_BYTES", 1000)
    with pytest.raises(UserError, match="bytes of arrays, more than 1000"):
        TrainedRouter.load(SKILLS)


def test_an_encoder_without_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ENCODER, tmp_path / "router"))
    with_weights(ENCODER / "encoder", folder / "encoder", lambda tensors: tensors.pop("classifier.weight"))
    with pytest.raises(UserError, match=r"classifier\.weight"):
        TrainedRouter.load(folder)
