"""``bench``: statistics, prompts, and small runs on a random model."""

from __future__ import annotations

import csv
import json
import sys

import pytest


def runs_of(seconds, tokens=10):
    from bench.statistics import Run

    return [[Run([1] * tokens, s, 5) for s in repeats] for repeats in seconds]


def test_speed_ratio_of_sums_of_medians():
    from bench.statistics import speed_ratio

    fast = runs_of([[1.0, 9.0, 1.0], [3.0, 3.0, 3.0], [2.0, 2.0, 0.1]])
    slow = runs_of([[2.0, 2.0, 2.0], [6.0, 0.1, 6.0], [5.0, 5.0, 5.0]])
    ratio = speed_ratio(fast, slow)
    assert ratio.value == pytest.approx(13 / 6)
    assert 2.0 <= ratio.low <= ratio.value <= ratio.high <= 2.5
    assert speed_ratio(fast, fast).low == speed_ratio(fast, fast).high == 1.0


def test_outputs_are_compared_and_near_ties_separated():
    from bench.statistics import Run, first_difference, summarise

    reference = [[Run([1, 2, 3], 1, 3)], [Run([1, 2, 3], 1, 3)], [Run([1, 2, 3], 1, 3)], [Run([1, 2, 3], 1, 3)]]
    others = [[Run([1, 2, 3], 1, 2)], [Run([1, 9, 3], 1, 2)], [Run([1, 2, 9], 1, 2)], [Run([1, 2, 3], 1, 2)]]
    summary = summarise("x", others, reference, [set(), {1}, {1}, {2}])
    assert (summary.same_output, summary.near_tie, summary.tau) == (0.5, 0.25, 2.0)
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 2], [1, 2]) is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": [4, 5]}, [4, 5]),
        ({"question": "ab", "answer": "c"}, [97, 98]),
        ({"question": {"turns": ["ab", "cd"]}, "answer": "c"}, [97, 98]),
        ({"turns": ["ab", "cd"]}, [97, 98]),
    ],
)
def test_prompts_of_every_file_format(tmp_path, row, expected):
    from types import SimpleNamespace

    from bench.options import read_requests

    class Characters:
        chat_template = None

        def __call__(self, text):
            return SimpleNamespace(input_ids=[ord(c) for c in text])

    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [row, {"prompt": [1] * 50}, row, row]))
    assert [request.ids for request in read_requests(path, Characters(), limit=2, room=10)] == [expected, expected]


def report_of(tmp_path, arguments, *more):
    from bench.__main__ import main

    assert main([*arguments, *more]) == 0
    return json.loads((tmp_path / "out" / "bench.json").read_text())


def test_a_run_prints_and_writes_everything(tmp_path, arguments, capsys):
    from safetensors.torch import load_file

    arguments += ["--methods", "prompt_lookup,draft_model", "--draft", str(tmp_path / "model"), "--repeats", "2"]
    arguments += ["--set", "draft_model.length=fixed:2", "--engine", "torch", "--quantization", "int8"]
    arguments += ["--limit", "4", "--max-new-tokens", "12"]
    report = report_of(tmp_path, arguments)
    rows = {row["name"]: row for row in report["methods"]}
    quantized = rows.pop("ours autoregressive int8")
    assert list(rows) == [
        *("transformers generate", "ours autoregressive", "ours prompt_lookup", "ours draft_model"),
        *("transformers prompt lookup", "transformers assisted"),
    ]
    for row in rows.values():
        assert row["same_output"] + row["near_tie"] == 1.0
        assert row["speedup"]["low"] <= row["speedup"]["value"] <= row["speedup"]["high"]
        assert [len(repeats) for repeats in report["runs"][row["name"]]] == [2, 2, 2, 2]
        assert all(0 < run["ttft"] < run["seconds"] for repeats in report["runs"][row["name"]] for run in repeats)
        assert row["ttft"] > 0
        assert row["target"] == ("fused" if "ours" in row["name"] else None)
    tau = {name.partition(" ")[2]: row["tau"] for name, row in rows.items()}
    assert tau["generate"] == tau["autoregressive"] == 1.0 < min(tau["draft_model"], tau["assisted"])
    memory = {name.partition(" ")[2]: row["memory"] for name, row in rows.items()}
    weights = sum(tensor.nbytes for tensor in load_file(tmp_path / "model" / "model.safetensors").values())
    # At most 16 positions of two layers, keys and values of 16 numbers of 4 bytes.
    assert weights < memory["generate"] <= weights + 16 * 2 * 2 * 16 * 4 + 100
    assert memory["assisted"] >= memory["generate"] + weights
    assert memory["draft_model"] >= memory["autoregressive"] + weights
    assert (quantized["memory"] < memory["autoregressive"], quantized["speedup"]["value"]) == (True, 1.0)
    assert {(r["method"], r["baseline"]) for r in report["ratios"]} >= {
        ("ours autoregressive", "transformers generate"),
        ("ours autoregressive int8", "ours autoregressive"),
        ("ours draft_model", "transformers assisted"),
    }
    assert set(report["tasks"]) == {"kind 0", "kind 1"}
    assert report["tasks"]["kind 0"]["ours autoregressive"] == 1.0
    with open(tmp_path / "out" / "bench.csv", newline="") as file:
        written = {row["name"]: row for row in csv.DictReader(file)}
    assert all(float(written[name]["memory"]) == pytest.approx(row["memory"], rel=1e-5) for name, row in rows.items())
    assert written["transformers generate"]["resident"] == written["transformers generate"]["target"] == ""
    assert (tmp_path / "out" / "bench.svg").read_text().startswith("<?xml")
    printed = capsys.readouterr().out
    assert "ours autoregressive / transformers generate: " in printed
    assert "TTFT ms" in printed
    assert any(line.startswith("ours prompt_lookup ") and line.endswith("  fused") for line in printed.splitlines())


@pytest.mark.parametrize(("gap", "share"), [(1e9, 1.0), (0.0, 0.0)])
def test_near_ties_are_those_of_the_reference(gap, share, tmp_path, arguments, monkeypatch):
    """For every engine, since the native step records none."""
    import torch

    from bench import methods
    from ianvs_specdec.engine import rounding

    made = methods.generate

    def differs(model, name, eos_ids, limit, **settings):
        entry = made(model, name, eos_ids, limit, **settings)
        decode = entry.decode

        def last_token_changed(request):
            run = decode(request)
            run.token_ids[-1] = (run.token_ids[-1] + 1) % 40
            return run

        entry.decode = last_token_changed if name == methods.GENERATE else decode
        return entry

    monkeypatch.setattr(methods, "generate", differs)
    monkeypatch.setitem(rounding.NEAR_TIE, torch.float32, gap)
    report = report_of(tmp_path, arguments, "--methods", "prompt_lookup", "--repeats", "1", "--limit", "2")
    for row in report["methods"][1:]:
        assert (row["same_output"], row["near_tie"]) == (0.0, share), row["name"]


def test_a_failing_row_does_not_end_the_others(tmp_path, arguments, capsys, monkeypatch):
    """One row fails at its start, one at its second prompt."""
    import bench.peers
    from ianvs_specdec.drafters.prompt_lookup import PromptLookup

    script = tmp_path / "worker.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setattr(bench.peers, "VLLM_WORKER", script)
    contexts, begin = [], PromptLookup.begin

    def fails(drafter, target, context, output):
        contexts.append(context)
        if len(contexts) > 3:
            raise ValueError("no luck")
        begin(drafter, target, context, output)

    monkeypatch.setattr(PromptLookup, "begin", fails)
    more = ["--methods", "prompt_lookup,recycling", "--vllm", sys.executable, "--repeats", "1"]
    report = report_of(tmp_path, arguments, *more)
    assert [row["name"] for row in report["methods"]] == [
        *("transformers generate", "ours autoregressive", "ours recycling", "transformers prompt lookup")
    ]
    assert report["failed"]["ours prompt_lookup"] == "no luck"
    assert report["failed"]["vLLM"].startswith("the vLLM process was killed by signal 4 while it loaded the model")
    assert "failed: the vLLM process was killed by signal 4" in capsys.readouterr().out
