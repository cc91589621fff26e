"""Prefills in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import Journal, Prefill
from ianvs_specdec.records.response import check_response
from tests.support import journals

KEY = "a" * 64
FIELDS: dict[str, Any] = {"seconds": 0.25, "issued": 1.0, "hardware": "h", "replayed": False, "key": "k"}
PREFILL = Prefill(b"\x00\x3c\x00\xbc", 7, 0.0031415, 1700000000.25)


def journal(folder: Path, run: str = "run-1", fresh: bool = False) -> Journal:
    return Journal(folder / FILE_NAME, run, fresh)


def test_a_prefill_is_restored_whole(tmp_path: Path) -> None:
    journal(tmp_path).put_prefill(KEY, PREFILL, hardware={"processor": "test"})
    for run, replayed in (("run-1", False), ("run-2", True)):
        found = journal(tmp_path, run).prefill(KEY)
        assert found is not None
        assert (found.prefill, found.replayed) == (PREFILL, replayed)
        assert journal(tmp_path).record(found.hardware)["value"] == {"processor": "test"}  # type: ignore[index]
    assert journal(tmp_path).prefill("b" * 64) is None
    assert journal(tmp_path, "run-2", fresh=True).prefill(KEY) is None
    assert (len(journal(tmp_path)), journal(tmp_path).get(KEY)) == (0, None)


def test_a_damaged_prefill_is_ignored(tmp_path: Path) -> None:
    journal(tmp_path).put_prefill(KEY, PREFILL, hardware={"processor": "test"})
    journals.change(tmp_path, "UPDATE prefills SET prefill = replace(prefill, '7', '8')")
    found = journal(tmp_path)
    assert (found.prefill(KEY), found.corrupt) == (None, 1)


@pytest.mark.parametrize("prefill", [7, {"issued": 1.0}, {**FIELDS, "seconds": -1}, {**FIELDS, "issued": "x"}])
def test_a_wrong_prefill_in_a_response_is_rejected(prefill: Any) -> None:
    check_response({"turns": [], "prefill": FIELDS})
    check_response({"turns": [], "prefill": {"seconds": 0.25}})
    with pytest.raises(ValueError, match=r"prefill"):
        check_response({"turns": [], "prefill": prefill})
