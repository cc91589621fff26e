"""``python -m bench.simulation`` on the embedded model: the same requests through engine and simulator."""

from __future__ import annotations

import json

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


def test_engine_and_simulator_meet_the_same_requests(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import simulation

    table = ROOT / "examples" / "cloud-edge-speculative-decoding" / "costs" / "h100-8b.json"
    small = ["--limit", "2", "--requests", "3", "--max-new-tokens", "8", "--lengths", "fixed:0,fixed:8"]
    told = ["--shares", "0.1", "--emulate", str(table), "--scale", "1", "--out", str(tmp_path)]
    assert simulation.main([*small, *told]) == 0
    report = json.loads((tmp_path / "simulation.json").read_text())
    assert [point["length"] for point in report["points"]] == ["fixed:0", "fixed:8"]
    for point in report["points"]:
        for name in simulation.BARS:
            assert point["real"][name] > 0
            assert point["off"][name] == pytest.approx(point["simulated"][name] / point["real"][name] - 1)
    plain, drafted = (point["simulated"]["p50"] for point in report["points"])
    assert drafted < plain
    assert "EMULATED" in capsys.readouterr().out
