"""A folder of work in parts says what it is for, and is for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.purpose import keep_to


def test_a_folder_is_kept_to_what_it_is_for(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        keep_to(folder, {"seed": 1, "model": "a"}, what="parts of another work", key="out")
    with pytest.raises(UserError) as refused:
        keep_to(folder, {"seed": 2, "model": "b"}, what="parts of another work", key="out")
    assert f"{folder} holds parts of another work (seed, model differ)" in str(refused.value)
    assert "--out" in str(refused.value)
    keep_to(folder, {"seed": 1, "model": "a"}, what="parts of another work", key="out")
