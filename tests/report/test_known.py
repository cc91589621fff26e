"""What a report says of answers that nobody has checked."""

from __future__ import annotations

import json

from ianvs_specdec.report.collect import collect
from tests.support.workspace import Bench


def unchecked(bench: Bench, some: int) -> str:
    """Take the baselines of so many answers of the first test case; its id."""
    folder = next((bench.folder / "edgeonly").iterdir())
    path = folder / "answers.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows[:some]:
        for side in ("result", "edge"):
            row[side]["turns"][0]["baseline"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder.name


def test_lossless_of_some_is_not_lossless_of_all(bench: Bench) -> None:
    identifier = unchecked(bench, 3)
    case = next(case for case in collect(bench.folder)["cases"] if case["id"] == identifier)
    assert case["figures"]["Lossless"] is None
    assert case["known"]["Lossless"] == [5, 8]
    others = [case for case in collect(bench.folder)["cases"] if case["id"] != identifier]
    assert all(case["figures"]["Lossless"] == 100.0 and "Lossless" not in case["known"] for case in others)
