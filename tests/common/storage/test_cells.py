"""CSV cells that look like formulas, in the plugin and the host."""

from __future__ import annotations

import csv
import io

import pytest

from core.common import cells as of_the_host
from ianvs_specdec.common.storage import cells

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "-", "'=1", "''+x"]
PLAIN = ["", "a=b", "-1", "+1.5", "-1e-3", "nan", "-inf", "'tis", "edge-only", " =1"]


@pytest.mark.parametrize("module", [cells, of_the_host], ids=["plugin", "host"])
def test_formulas_are_escaped_and_numbers_are_not(module) -> None:
    written = module.csv_text([["a", *FORMULAS, *PLAIN], [-1, -2.5]])
    (first, numbers) = csv.reader(io.StringIO(written, newline=""))
    assert first == ["a", *(f"'{text}" for text in FORMULAS), *PLAIN]
    assert [module.unescaped(cell) for cell in first] == ["a", *FORMULAS, *PLAIN]
    assert numbers == ["-1", "-2.5"]
