"""Cells of CSV files that a spreadsheet would compute."""

from __future__ import annotations

import csv
import io

import pytest

from ianvs_specdec.common.storage.cells import csv_text, escaped, unescaped

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "-", "=", "'=1", "''+x", "+"]
PLAIN = ["", "a=b", "-1", "+1.5", "-1e-3", "nan", "-inf", "'tis", "''", "edge-only", " =1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text_and_comes_back(text: str) -> None:
    cell = escaped(text)
    assert cell[0] == "'"
    assert unescaped(cell) == text
    (row,) = csv.reader(io.StringIO(csv_text([[text]]), newline=""))
    assert row == [cell]


@pytest.mark.parametrize("text", PLAIN)
def test_numbers_and_other_texts_stay(text: str) -> None:
    assert escaped(text) == text
    assert unescaped(text) == text


def test_numbers_are_no_texts() -> None:
    assert csv_text([["a", "=b"], [-1, -2.5]]) == "a,'=b\n-1,-2.5\n"
