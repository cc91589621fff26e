"""The measuring harness: its statistics, its prompts, and one small run on a random model."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def bench_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def runs_of(seconds, tokens=10):
    from bench.statistics import Run

    return [[Run([1] * tokens, s, 5) for s in repeats] for repeats in seconds]


def test_ratio_is_of_sums_of_medians_with_an_interval_around_it():
    from bench.statistics import speed_ratio

    fast = runs_of([[1.0, 9.0, 1.0], [3.0, 3.0, 3.0], [2.0, 2.0, 0.1]])
    slow = runs_of([[2.0, 2.0, 2.0], [6.0, 0.1, 6.0], [5.0, 5.0, 5.0]])
    ratio = speed_ratio(fast, slow)
    assert ratio.value == pytest.approx(13 / 6)
    assert 2.0 <= ratio.low <= ratio.value <= ratio.high <= 2.5
    assert speed_ratio(fast, fast).low == speed_ratio(fast, fast).high == 1.0


def test_outputs_are_compared_and_near_ties_told_apart():
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
        ({"prompt": "ab"}, [97, 98]),
        ({"question": "ab", "answer": "c"}, [97, 98]),
        ({"question": {"turns": ["ab", "cd"]}, "answer": "c"}, [97, 98]),
        ({"query": "ab", "response": "c"}, [97, 98]),
        ({"turns": ["ab", "cd"]}, [97, 98]),
    ],
)
def test_prompts_are_read_from_every_known_kind_of_file(tmp_path, row, expected):
    from types import SimpleNamespace

    from bench.prompts import read_requests

    class Characters:
        chat_template = None

        def __call__(self, text):
            return SimpleNamespace(input_ids=[ord(c) for c in text])

    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [row, {"prompt": [1] * 50}, row, row]))
    assert [request.ids for request in read_requests(path, Characters(), limit=2, room=10)] == [expected, expected]


def random_model(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=48, max_position_embeddings=64, initializer_range=0.3, eos_token_id=47, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    return config


def test_a_run_prints_and_writes_everything(tmp_path, capsys, monkeypatch):
    from transformers import LlamaForCausalLM

    from bench.__main__ import main

    config = random_model(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": [3, 4, 5, 3, 4, 5 + i], "category": f"kind {i % 2}"} for i in range(3)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--model", str(tmp_path / "model"), "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    arguments += ["--methods", "prompt_lookup,draft_model", "--draft", str(tmp_path / "model"), "--dtype", "float32"]
    arguments += ["--set", "draft_model.length=fixed:2"]
    arguments += ["--engine", "torch", "--threads", "1"]
    assert main([*arguments, "--max-new-tokens", "12", "--repeats", "2"]) == 0

    report = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["name"] for row in report["methods"]] == [
        "transformers generate",
        "ours autoregressive",
        "ours prompt_lookup",
        "ours draft_model",
        "transformers prompt lookup",
        "transformers assisted",
    ]
    for row in report["methods"]:
        assert row["same_output"] + row["near_tie"] == 1.0
        assert (row["tau"] == 1.0) == row["name"].endswith(("generate", "autoregressive"))
        assert row["speedup"]["low"] <= row["speedup"]["value"] <= row["speedup"]["high"]
        assert [len(repeats) for repeats in report["runs"][row["name"]]] == [2, 2, 2]
        assert all(0 < run["ttft"] < run["seconds"] for repeats in report["runs"][row["name"]] for run in repeats)
        assert row["ttft"] > 0
        assert row["resident"] is None
        assert row["target"] == ("fused" if "ours" in row["name"] else None)
    memory = {row["name"].partition(" ")[2]: row["memory"] for row in report["methods"]}
    weights = sum(tensor.nbytes for tensor in LlamaForCausalLM(config).parameters())
    # At most 17 positions of two layers, keys and values of 32 numbers of 4 bytes.
    assert weights < memory["generate"] <= weights + 17 * 2 * 2 * 32 * 4 + 100
    assert memory["assisted"] >= memory["generate"] + weights
    assert memory["draft_model"] >= memory["autoregressive"] + weights
    assert {(r["method"], r["baseline"]) for r in report["ratios"]} >= {
        ("ours autoregressive", "transformers generate"),
        ("ours prompt_lookup", "transformers prompt lookup"),
        ("ours draft_model", "transformers assisted"),
    }
    assert set(report["tasks"]) == {"kind 0", "kind 1"}
    assert report["tasks"]["kind 0"]["ours autoregressive"] == 1.0
    with open(tmp_path / "out" / "bench.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["memory"]) for row in rows] == pytest.approx(list(memory.values()), rel=1e-5)
    assert all(float(row["ttft"]) > 0 and row["resident"] == "" for row in rows)
    assert [row["target"] for row in rows] == ["", "fused", "fused", "fused", "", ""]
    assert (tmp_path / "out" / "bench.svg").read_text().startswith("<?xml")
    printed = capsys.readouterr().out
    assert "ours autoregressive / transformers generate: " in printed
    assert "TTFT ms" in printed
    assert any(line.startswith("ours prompt_lookup ") and line.endswith("  fused") for line in printed.splitlines())
    assert main(["--model", str(tmp_path / "nowhere")]) == 2


def test_quantizations_have_rows_of_their_own(tmp_path, capsys):
    from bench.__main__ import main

    random_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [3, 4, 5, 3, 4, 5]}')
    arguments = ["--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "prompts.jsonl")]
    arguments += ["--out", str(tmp_path / "out"), "--methods", "autoregressive", "--max-new-tokens", "4"]
    arguments += ["--engine", "torch", "--repeats", "1", "--threads", "1"]
    assert main([*arguments, "--quantization", "int8,int4"]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "bench.json").read_text())["methods"]}
    assert rows["ours autoregressive int8"]["memory"] < rows["ours autoregressive"]["memory"]
    assert rows["ours autoregressive int4"]["target"] == "fused"
    assert rows["ours autoregressive int8"]["speedup"]["value"] == 1.0
    assert "ours autoregressive int8 / ours autoregressive: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*arguments, "--quantization", "int8,int3"])
    assert "'int3' is not one of int8, int4" in capsys.readouterr().err


def bench_of(tmp_path, *more):
    """The report of a run with ours alone; and what ``main`` returns."""
    from bench.__main__ import main

    random_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": [3, 4, 5, {n}]}}\n' for n in range(4)))
    arguments = ["--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "prompts.jsonl")]
    arguments += ["--out", str(tmp_path / "out"), "--max-new-tokens", "6", "--repeats", "1", "--threads", "1"]
    status = main([*arguments, *more])
    return status, json.loads((tmp_path / "out" / "bench.json").read_text())


@pytest.mark.parametrize(("gap", "share"), [(1e9, 1.0), (0.0, 0.0)])
def test_near_ties_are_those_of_the_reference(gap, share, tmp_path, monkeypatch):
    """Whatever computes ours: the native step notes none of its own."""
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
    status, report = bench_of(tmp_path, "--methods", "prompt_lookup", "--dtype", "float32")
    assert status == 0
    for row in report["methods"][1:]:
        assert (row["same_output"], row["near_tie"]) == (0.0, share), row["name"]


def test_one_that_fails_does_not_end_the_others(tmp_path, capsys, monkeypatch):
    """One fails as it starts, one at its second prompt."""
    import bench.peers
    from ianvs_specdec.drafters.prompt_lookup import PromptLookup

    script = tmp_path / "worker.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setattr(bench.peers, "VLLM_WORKER", script)
    asked, begin = [], PromptLookup.begin

    def fails(drafter, target, context, output):
        asked.append(context)
        if len(asked) > 3:
            raise ValueError("no luck")
        begin(drafter, target, context, output)

    monkeypatch.setattr(PromptLookup, "begin", fails)
    status, report = bench_of(tmp_path, "--methods", "prompt_lookup,recycling", "--vllm", sys.executable)
    assert status == 0
    assert [row["name"] for row in report["methods"]] == [
        *("transformers generate", "ours autoregressive", "ours recycling", "transformers prompt lookup")
    ]
    assert report["failed"]["ours prompt_lookup"] == "no luck"
    assert report["failed"]["vLLM"].startswith("the vLLM process was killed by signal 4 while it loaded the model")
    assert "failed: the vLLM process was killed by signal 4" in capsys.readouterr().out
