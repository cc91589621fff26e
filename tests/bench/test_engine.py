"""The engine's own cost, on a shape small enough for a test."""

from __future__ import annotations

import json

import pytest

from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def bench_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def test_a_run_on_the_cpu_prints_and_writes_everything(tmp_path, capsys):
    from bench.engine import main

    out = tmp_path / "deep" / "engine.json"
    small = ["--shape", "tiny", "--device", "cpu", "--dtype", "float32", "--tokens", "12", "--repeats", "1"]
    assert main([*small, "--tau", "2", "2.5", "--draft", "3", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert list(report["tokens_per_second"]) == ["transformers generate", "ours, tau 1", "ours, tau 2", "ours, tau 2.5"]
    assert set(report["steps"]) == {"1", "4", "60"}
    # Two layers and the output matrix, float32: what a step has to read.
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert report["weights_bytes"] == 4 * (2 * layer + 64 + 128 * 64)
    assert (report["environment"]["target"], bool(report["environment"]["instructions"])) == ("fused", True)
    assert "of the floor" in capsys.readouterr().out


def test_synthetic_acceptance_keeps_what_tau_says():
    from types import SimpleNamespace

    import torch

    from bench.engine import _speculation
    from ianvs_specdec.decoding.contracts import Prompt

    kept = []
    sequence = SimpleNamespace(commit=lambda path: kept.append(len(path)), close=lambda: None)

    def step(parts):
        ((of, piece),) = parts
        assert of is sequence
        rows = 1 if isinstance(piece, Prompt) else len(piece)
        return [SimpleNamespace(logits=torch.eye(4)[torch.zeros(rows, dtype=torch.long)])]

    target = SimpleNamespace(open=lambda: sequence, step=step, prompt_rows=None)
    _speculation(target, [1, 2], 4000, 7, 3.25)()
    assert set(kept) == {3, 4}
    assert sum(kept) / len(kept) == pytest.approx(3.25, abs=0.05)


def test_a_tau_that_cannot_be_reached_and_a_missing_gpu_are_told(capsys):
    import torch

    from bench.engine import main

    assert main(["--shape", "tiny", "--device", "cpu", "--tau", "9", "--draft", "7"]) == 2
    assert "--tau must be from 1 to 8" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["--shape", "tiny"]) == 2
        assert "no GPU here" in capsys.readouterr().err
