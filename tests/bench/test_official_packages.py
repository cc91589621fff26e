"""The published packages behind their drivers do what the reference traces say they did."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from ianvs_specdec.backends.official.backend import steps_of
from ianvs_specdec.backends.official.layout import old_head, old_model
from tests.support.packages import package_python
from tests.support.paths import ROOT, shared_file

TOKENS = 64

pytestmark = pytest.mark.slow


def answers_of(package, rows, prompt, tmp_path, monkeypatch):
    """What the package answers for each of ``rows``, asked as the bench asks it."""
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.peers import PUBLISHED, Peer

    reference = shared_file("reference")
    arguments = {"model": str(old_model(reference / "target", tmp_path / "model", [2])), "dtype": "float32"}
    if package == "eagle-llm":
        arguments["head"] = str(old_head(reference / "eagle1", tmp_path / "head"))
    command = [str(package_python(package)), str(PUBLISHED), package]
    with closing(Peer(package, command, {**arguments, "threads": 1}, threads=1)) as peer:
        assert package in peer.start().ready["versions"]
        return [answer_of(peer, prompt, row) for row in rows]


def answer_of(peer, prompt, row):
    lines = peer.ask(prompt, max_tokens=TOKENS, stop_token_ids=[2], settings=row)
    counts = [len(line["tokens"]) for line in lines]
    steps = steps_of(counts, counts, lines[-1]["drafts"])
    run = peer.decode(prompt, TOKENS, [2], settings=row)
    assert run.forwards - run.prefills == len(steps)
    return {"output": run.token_ids, "steps": len(steps), "emitted": [step.emitted for step in steps]}


def trace(name):
    return json.loads(shared_file("reference", "traces", name).read_text())[0]


def test_eagle_llm_takes_the_steps_of_its_trace(tmp_path, monkeypatch):
    expected = trace("eagle1_strong.json")
    rows = [{"tree": "static"}, {"tree": "chain", "depth": 7}, {"tree": "static"}, {"generate": True}]
    static, chain, again, plain = answers_of("eagle-llm", rows, expected["prompt"], tmp_path, monkeypatch)
    output = expected["output"][len(expected["prompt"]) :]
    assert static["emitted"][:-1] == [step["emitted"] for step in expected["steps"]][: static["steps"] - 1]
    assert again["emitted"] == static["emitted"] != chain["emitted"]
    assert max(chain["emitted"]) > 6 >= max(static["emitted"])
    for answer in (static, chain, again, plain):
        assert answer["output"] == output[:TOKENS]


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
