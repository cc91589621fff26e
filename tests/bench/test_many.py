"""``python -m bench.many`` on a small model, and its peers' loops."""

from __future__ import annotations

import csv
import json
import sys

import pytest

SCRIPTED = """
import json, sys
engine = json.loads(sys.stdin.readline())["engine"]
print(json.dumps({"ready": {}}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    asked = message["sampling"]
    assert asked["at_once"] <= engine["at_once"]
    answer = {"outputs": [prompt[:2] for prompt in asked["prompts"]], "seconds": 4.0 / asked["at_once"]}
    print(json.dumps({"id": message["id"], "finish": "stop", **answer}), flush=True)
"""

PEER = "llama.cpp f32"


@pytest.mark.slow
def test_a_run_serves_every_batch_with_every_number_at_once_and_compares(arguments, tmp_path, capsys, monkeypatch):
    from bench.many import main

    script = tmp_path / "worker.py"
    script.write_text(SCRIPTED)
    monkeypatch.setattr("bench.peers.LLAMACPP_WORKER", script)
    monkeypatch.setattr("bench.peers.export_gguf", lambda *_: None)
    arguments += ["--llamacpp", sys.executable, "--engine", "torch", "--repeats", "2"]
    monkeypatch.setattr("bench.many.BATCHES_OF", 1)
    assert main([*arguments, "--at-once", "3,1"]) == 0

    report = json.loads((tmp_path / "out" / "many.json").read_text())
    assert (report["settings"]["rounds"], report["settings"]["batch"], report["settings"]["prompts"]) == (4, 3, 6)
    rows = {(row["name"], row["at_once"]): row for row in report["rows"]}
    assert list(rows) == [("ours autoregressive", 1), ("ours autoregressive", 3), (PEER, 1), (PEER, 3)]
    assert [row["same_output"] for row in rows.values()] == [1.0, 1.0, 0.0, 0.0]
    assert [row["target"] for row in rows.values()] == ["fused", "fused", None, None]
    # Two tokens for each of three requests.
    assert rows[PEER, 3]["tokens_per_second"]["value"] == pytest.approx(6 / (4 / 3))
    assert rows[PEER, 3]["of_least"] == pytest.approx({"value": 3.0, "low": 3.0, "high": 3.0})
    assert [(ratio["method"], ratio["baseline"], ratio["at_once"]) for ratio in report["ratios"]] == [
        ("ours autoregressive", PEER, 1),
        ("ours autoregressive", PEER, 3),
    ]
    with open(tmp_path / "out" / "many.csv", newline="") as file:
        assert [row["at_once"] for row in csv.DictReader(file)] == ["1", "3", "1", "3"]
    printed = capsys.readouterr().out
    assert "6 prompts in batches of 3, 4 rounds" in printed
    assert f"ours autoregressive / {PEER}, 3 at once: " in printed


def test_each_length_has_a_row_and_a_policy_is_held_against_the_best_fixed_one_in_hindsight(arguments):
    from bench.many import Round, _arguments, _hindsight, _ours
    from bench.methods import Method
    from bench.options import load
    from bench.prompts import Request
    from ianvs_specdec.targets.registry import create_target

    asked = ["--length", "fixed:1", "--length", "fixed:3", "--length", "goodput", "--at-once", "2"]
    options = _arguments([*arguments, *asked])
    target = create_target(load(options)[0], engine="torch")
    rows = list(_ours(options, Method(target, "prompt_lookup", {}, [1], 6), "prompt_lookup", ""))
    assert [row.name for row in rows] == [f"ours prompt_lookup {length}" for length in asked[1:6:2]]
    rows = [*_ours(options, Method(target, "autoregressive", {}, [1], 6), "autoregressive", ""), *rows]
    assert rows[0].name == "ours autoregressive"
    batch = [Request([3, 4, 3, 4 + i], "") for i in range(3)]
    assert len({str(row.serve(batch).outputs) for row in rows}) == 1
    seconds = dict(zip([row.name for row in rows], (2.0, 4.0, 1.0, 1.5), strict=True))
    found = {(name, 2): [Round([[1, 2]], taken)] for name, taken in seconds.items()}
    assert _hindsight(found, options) == [("ours prompt_lookup goodput", "ours prompt_lookup fixed:3", 2)]
    found["ours autoregressive", 2] = [Round([[1, 2]], 0.5)]
    assert _hindsight(found, options) == [("ours prompt_lookup goodput", "ours autoregressive", 2)]
