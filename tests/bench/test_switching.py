"""``python -m bench.switching`` on a small model."""

from __future__ import annotations

import json

import pytest

from tests.support.models import build_model
from tests.support.paths import ROOT


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    build_model(tmp_path / "model")
    rows = [{"prompt": [3 + i, 4, 5, 6][: 2 + i % 3]} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--model", str(tmp_path / "model"), "--draft", str(tmp_path / "model"), "--engine", "torch"]
    given += ["--prompts", str(tmp_path / "prompts.jsonl"), "--threads", "1", "--dtype", "float32"]
    return [*given, "--max-new-tokens", "12", "--at-once", "2", "--repeats", "2", "--out", str(tmp_path / "out")]


def test_steps_are_held_against_others_of_their_size(arguments, tmp_path, capsys, monkeypatch):
    from bench import switching

    monkeypatch.setattr(switching, "LEAST", 3)
    assert switching.main([*arguments, "--switches", "12"]) == 0
    (row,) = json.loads((tmp_path / "out" / "switching.json").read_text())["rows"]
    assert row["name"] == "draft_model model"
    assert row["steps"] >= row["judged"] > 12
    assert row["longest"] >= row["resumed_longest"] >= row["resumed"] > 0
    assert row["most_behind"] >= 2
    assert "draft_model model" in capsys.readouterr().out


def test_too_few_steps_are_told(arguments, capsys):
    from bench import switching

    assert switching.main([*arguments, "--switches", "1"]) == 2
    assert "ask for more --switches" in capsys.readouterr().err
