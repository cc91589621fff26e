"""The published packages behind their drivers do what the reference traces say they did."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, shared_file

ENVIRONMENTS = Path(os.environ.get("SPECDEC_OFFICIAL", ROOT / "runs" / "official"))
TOKENS = 64

pytestmark = pytest.mark.slow


def answers_of(package, rows, prompt, tmp_path, monkeypatch):
    """What the driver of ``package`` answers for each of ``rows``."""
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.official.layout import old_head, old_model
    from bench.official.process import Driver

    reference = shared_file("reference")
    python = ENVIRONMENTS / f"venv-{package}" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        pytest.skip(f"no environment {python.parent.parent}: make bench-official makes it (or set SPECDEC_OFFICIAL)")
    model = old_model(reference / "target", tmp_path / "model", [2])
    head = old_head(reference / "eagle1", tmp_path / "head")
    command = [str(python), str(ROOT / "bench" / "official" / f"{package}_driver.py")]
    command += ["--model", str(model), "--head", str(head)]
    with Driver(package, command, tmp_path / "log", threads=1) as driver:
        driver.start()
        request = {"prompt": prompt, "max_new_tokens": TOKENS, "eos_ids": [2]}
        return [driver.ask({"row": row, **request}) for row in rows]


def trace(name):
    return json.loads(shared_file("reference", "traces", name).read_text())[0]


def test_eagle_llm_takes_the_steps_of_its_trace(tmp_path, monkeypatch):
    expected = trace("eagle1_strong.json")
    rows = [{"tree": "static"}, {"tree": "chain", "depth": 7}, {"tree": "static"}, {"generate": True}]
    static, chain, again, plain = answers_of("eagle", rows, expected["prompt"], tmp_path, monkeypatch)
    output = expected["output"][len(expected["prompt"]) :]
    assert static["emitted"] == [step["emitted"] for step in expected["steps"]][: static["steps"]]
    assert again["emitted"] == static["emitted"] != chain["emitted"]
    assert max(chain["emitted"]) > 6 >= max(static["emitted"])
    for answer in (static, chain, again, plain):
        assert len(answer["output"]) - TOKENS in range(8)
        assert answer["output"] == output[: len(answer["output"])]


def test_lade_takes_the_steps_of_its_trace(tmp_path, monkeypatch):
    expected = trace("lade002_L5_W7_G7.json")
    rows = [{"level": 5, "window": 7, "guess": 7}, {"generate": True}, {"level": 7, "window": 20, "guess": 20}]
    small, plain, large = answers_of("lade", rows, expected["prompt"], tmp_path, monkeypatch)
    output = expected["output"][len(expected["prompt"]) :][:TOKENS]
    for answer in (small, plain, large):
        assert answer["output"] == output
    assert small["emitted"][:-1] == expected["emitted"][: small["steps"] - 1]
    assert (sum(small["emitted"]), sum(plain["emitted"])) == (TOKENS, TOKENS - 1)
    assert large["steps"] < small["steps"]
