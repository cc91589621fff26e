"""What the times were taken with, as a report tells it."""

from __future__ import annotations

import json

from ianvs_specdec.report.collect import collect
from tests.support.workspace import Bench

LOAD = [
    {"run": "1", "answers": 6, "seconds": 9.0, "others": 0.01, "steal": 0.0},
    {"run": "2", "answers": 2, "seconds": 9.0, "others": 0.4, "doubt": "other programs took 40% of the processors"},
]
MODULES = {"edgemodel": {"target": "fused", "threads": 2}, "cloudmodel": [{"target": "fused"}, {"target": "vllm"}]}


def test_load_and_target_are_in_the_report(bench: Bench) -> None:
    folder = next((bench.folder / "edgeonly").iterdir())
    (folder / "environment.json").write_text(json.dumps({"load": LOAD, "modules": MODULES}), encoding="utf-8")
    path = folder / "answers.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows[:5]:
        row["result"]["turns"][0]["trace"]["target"] = "fused"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    case = next(case for case in collect(bench.folder)["cases"] if case["id"] == folder.name)
    assert case["load"] == LOAD
    assert case["targets"] == {"edge": {"fused": 5}}
    assert "times are doubtful: other programs took 40% of the processors" in case["notes"]
    environment = case["environment"]
    assert (environment["modules.edgemodel.target"], environment["modules.cloudmodel.2.target"]) == ("fused", "vllm")
    assert environment["load.2.others"] == "0.4"
