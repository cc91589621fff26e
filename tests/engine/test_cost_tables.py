"""Cost tables: interpolation, the costs of steps and drafts, and invalid tables."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.costs import MAX_FILE_BYTES, Grid, from_json, read
from tests.support import roofline
from tests.support.cost_tables import LEVEL, PROMPT, PROMPT_ROW, ROW, STEP, TOKEN, simple
from tests.support.paths import EXAMPLE


def test_a_grid_is_linear_between_its_knots_and_beyond_the_last():
    grid = Grid((2, 4), (10, 30), ((1.0, 3.0), (2.0, 6.0)))
    assert grid.at(2, 10) == 1.0
    assert grid.at(3, 20) == pytest.approx((1 + 3 + 2 + 6) / 4)
    assert grid.at(0, 0) == 1.0, "what lies before an axis counts as its first knot"
    assert grid.at(6, 10) == pytest.approx(3.0)
    assert grid.at(4, 50) == pytest.approx(10.0)
    assert Grid((7,), (7,), ((0.5,),)).at(100, 100) == 0.5


def test_a_step_adds_up_its_parts():
    table = simple(request=0.003, attention=1e-5, shared=0.004)
    verifying = STEP + 4 * ROW + 100 * TOKEN + 2 * 0.003 + 1e-5 * 5 * 100 / 2
    assert table.step_seconds(5, 100, 2) == pytest.approx(verifying)
    reading = PROMPT + 30 * PROMPT_ROW
    assert table.step_seconds(0, 0, 0, 30, 30) == pytest.approx(reading)
    assert table.step_seconds(5, 100, 2, 30, 30) == pytest.approx(verifying + reading - 0.004)
    assert replace(table, shared=9.0).step_seconds(5, 100, 2, 30, 30) == pytest.approx(max(verifying, reading))


def test_a_draft_costs_by_its_levels_and_requests():
    # A level costs 1 for each request in it, and as much again for the first.
    table = replace(simple(), draft=Grid((1, 3), (0, 4), ((1.0, 1.0 + 4 * 2), (1.0, 1.0 + 4 * 4))), catch_up=0.5)
    assert table.draft_seconds([]) == 0.0
    assert table.draft_seconds([0, 0]) == pytest.approx(1.0)
    assert table.draft_seconds([3]) == pytest.approx(1.0 + 3 * 2)
    assert table.draft_seconds([3, 3]) == pytest.approx(1.0 + 3 * 3)
    assert table.draft_seconds([1, 3, 2]) == pytest.approx(1.0 + 4 + 3 + 2)
    assert table.draft_seconds([4], behind=6) == pytest.approx(1.0 + 8 + 3.0)
    assert table.draft_seconds([4000]) == table.draft_seconds([4]), "no draft is larger than the table's"
    assert simple(draft=False).draft_seconds([3]) == 0.0
    assert simple().draft_seconds([5, 5]) == pytest.approx(5 * LEVEL)


def test_a_table_is_written_and_read(tmp_path):
    for table in (simple(note="é", request=0.1, catch_up=0.2), simple(draft=False, prompt_rows=None)):
        assert from_json(json.loads(json.dumps(table.to_json()))) == table


def changed(**changes):
    return {**simple().to_json(), **changes}


GRID = simple().to_json()["step"]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ([], '"format" must be "specdec-costs"'),
        (changed(format="other"), '"format" must be'),
        (changed(version=2), "a cost table of version 2, and this program reads 1"),
        (changed(rows=3), "unknown key 'rows'. Did you mean 'prompt_rows'?"),
        (changed(machine=3), "machine: Input should be a valid string, not 3"),
        (changed(step={**GRID, "rows": [2, 1]}), "step.rows must be strictly increasing"),
        (
            changed(step={**GRID, "context": [-1, 1]}),
            "step.context.0: Input should be greater than or equal to 0",
        ),
        (changed(step={**GRID, "seconds": [[1, 2]]}), "step must hold seconds for each pair of knots"),
        (changed(step={**GRID, "seconds": [[1, 2], [1, float("nan")]]}), "step.seconds.1.1: Input should be a"),
        (changed(step={**GRID, "seconds": [[1, 2], [0, 2]]}), "step must have seconds of more than 0"),
    ],
)
def test_invalid_tables_are_one_message(data, part, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as told:
        read(path, key="emulate")
    assert str(told.value).startswith(f"{path}: ")
    assert part in str(told.value)
    assert told.value.key == "emulate"


def test_unreadable_files_are_reported(tmp_path):
    path = tmp_path / "table.json"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not JSON"):
        read(path)
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(UserError, match="not a cost table, which has at most 4 MiB"):
        read(path)


def test_the_example_table_matches_the_arithmetic_of_the_docs():
    table = read(EXAMPLE / "costs" / "h100-8b.json")
    assert table == roofline.table()
    assert table.emulated
    assert "stated" in table.machine
