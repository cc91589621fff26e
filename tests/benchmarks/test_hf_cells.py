"""Cells of CSV and TSV are what stands there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")
Rows = list[dict[str, Any]]
OPTIONS = ("--question", "q", "--answer", "a", "--choices", "x", "y", "z")


def test_no_type_is_guessed(tmp_path: Path, prepare: Callable[..., Rows]) -> None:
    path = tmp_path / "data.csv"
    path.write_text("q,a\nWhich agent?,007\nSodium?,NA\nHow much?,1.50\nWhat was it?,None\nOpen?,\n", encoding="utf-8")
    rows = prepare("hf", "--path", path, "--question", "q", "--answer", "a")
    assert [row["answer"] for row in rows] == ["007", "NA", "1.50", "None", None]


@pytest.mark.parametrize(
    ("rows", "letters"), [("?,2,0,1,1\n?,0,1,2,0\n", "BA"), ("?,20,0,1,20\n?,0,1,2,1\n", "AB")], ids=["number", "text"]
)
def test_a_column_of_numbers_counts_options_if_all_of_it_can(
    tmp_path: Path, prepare: Callable[..., Rows], rows: str, letters: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"q,x,y,z,a\n{rows}", encoding="utf-8")
    assert [row["answer"] for row in prepare("hf", "--path", path, *OPTIONS)] == list(letters)


@pytest.mark.parametrize("folder", [False, True])
def test_tabs_stand_between_the_cells_of_tsv(tmp_path: Path, prepare: Callable[..., Rows], folder: bool) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "test.tsv"
    path.write_text("q\ta\nHow much is 3, 4 and 05?\t012\n", encoding="utf-8")
    (row,) = prepare("hf", "--path", path.parent if folder else path, "--question", "q", "--answer", "a")
    assert (row["question"]["turns"], row["answer"]) == (["How much is 3, 4 and 05?"], "012")
