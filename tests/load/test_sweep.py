"""Sweeps with a stub of guidellm: counts, files, resuming."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load import sweep
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.rounds import RoundKey
from ianvs_specdec.load.servers import Server, ServerDied
from tests.support.load_generator import Stub
from tests.support.paths import EXAMPLE

SETTINGS = str(EXAMPLE / "testalgorithms/query-routing/cloud_settings.yaml")


def plan_of(stub: Stub, data: Path, **more: Any) -> SweepPlan:
    given = {"url": stub.url, "model": "m", "data": str(data), "rates": "2,4", "duration": 5, "arrivals": "constant"}
    return SweepPlan.parse(given | more)


@pytest.fixture
def served(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of ``specdec serve`` the stub, which answers by the policy. Returns the policies that were asked."""
    asked: list[str] = []

    class Policy(Server):
        def __init__(self, plan: SweepPlan, policy: str) -> None:
            super().__init__(stub.url, "load")
            self.policy = policy

        def check(self) -> None:
            stub.rule |= {"ttft": 0.2 if self.policy == "fixed:0" else 0.1}
            asked.append(self.policy)
            super().check()

    monkeypatch.setattr(sweep, "start_server", Policy)
    return asked


@pytest.mark.usefixtures("guidellm")
def test_figures_of_a_server(stub: Stub, data: Path, tmp_path: Path) -> None:
    stub.rule |= {"refused": [1], "failed": [2], "unreported": [15]}
    plan = plan_of(stub, data, max_tokens=11, warmup=1, slo="ttft=0.15,tpot=0.02,latency=0.25")
    slow, fast = sweep.run(plan, tmp_path / "out")
    assert (slow["policy"], slow["rate"], slow["arrivals"]) == ("as-served", 2.0, "constant")
    # Of ten requests two come in the first second; the refused one is among them.
    assert [slow[name] for name in ("requests", "completed", "refused", "failed")] == [8, 7, 0, 1]
    assert slow["ttft"] == pytest.approx(dict.fromkeys(("p50", "p90", "p95", "p99", "mean"), 0.1))
    assert slow["tpot"]["p99"] == slow["itl"]["mean"] == pytest.approx(0.01)
    assert slow["latency"]["p50"] == pytest.approx(0.2)
    assert slow["intervals"]["latency"]["p50"] == pytest.approx([0.2, 0.2])
    # Seven in four seconds, each within the objectives and at its end before the window closes.
    assert slow["slo_goodput"] == slow["requests_per_second"] == 1.75
    assert slow["output_tokens_per_second"] == pytest.approx(7 * 11 / 4)
    low, high = slow["intervals"]["output_tokens_per_second"]
    assert low < slow["output_tokens_per_second"] < high
    assert slow["client_cpu_seconds_total"] > 0
    assert slow["client_delay_p99"] == pytest.approx(0.001)
    assert [slow[name] for name in ("acceptance_rate", "work_amplification", "queue", "lossless")] == [None] * 4
    assert slow["notes"] == ["1 of 8 requests failed"]
    assert [fast[name] for name in ("requests", "completed", "failed", "unreported")] == [16, 15, 0, 1]
    assert fast["notes"] == ["guidellm did not report 1 of 16 requests"]
    assert json.loads((tmp_path / "out/sweep.json").read_text()) == [slow, fast]
    rows = list(csv.DictReader((tmp_path / "out/sweep.csv").read_text().splitlines()))
    assert [(row["Rate"], row["Completed"], row["Acceptance Rate"]) for row in rows] == [
        ("2.0", "7", ""),
        ("4.0", "15", ""),
    ]


@pytest.mark.usefixtures("guidellm")
def test_policies_get_the_same_requests(stub: Stub, data: Path, tmp_path: Path, served: list[str]) -> None:
    plan = plan_of(stub, data, rates="2", policies="goodput,fixed:0,fixed:4", settings=SETTINGS, url=None, model=None)
    results = sweep.run(plan, tmp_path / "out")
    assert [(row["rate"], row["policy"]) for row in results] == [(2.0, policy) for policy in plan.policies]
    assert [row["lossless"] and row["lossless"]["share"] for row in results] == [1.0, None, 1.0]
    assert results[0]["ratios"].keys() == {"fixed:0", "fixed:4"}
    assert [row["ttft"]["p50"] for row in results] == pytest.approx([0.1, 0.2, 0.1])
    requests = [path.read_text() for path in sorted((tmp_path / "out/rounds").glob("2-*/requests.jsonl"))]
    asked = [[(json.loads(line)["due"], json.loads(line)["text"]) for line in text.splitlines()] for text in requests]
    assert asked[0] == asked[1] == asked[2]


def test_policy_order_depends_on_seed(stub: Stub, data: Path) -> None:
    def order(seed: int) -> list[RoundKey]:
        more = {"rates": "1,2,3", "repeats": 2, "policies": "fixed:0,fixed:1,fixed:2", "settings": SETTINGS}
        return sweep.order(plan_of(stub, data, url=None, model=None, seed=seed, **more))

    assert order(1) == order(1) != order(2)
    asked = [(rate, repeat) for rate in (1.0, 2.0, 3.0) for repeat in (0, 1)]
    assert [(place.rate, place.repeat) for place in order(1)] == [one for one in asked for _ in range(3)]
    in_turn = [tuple(place.policy for place in order(1)[start : start + 3]) for start in range(0, 18, 3)]
    assert {tuple(sorted(policies)) for policies in in_turn} == {("fixed:0", "fixed:1", "fixed:2")}
    assert len(set(in_turn)) > 1


@pytest.mark.usefixtures("guidellm")
def test_repeats_have_successive_seeds(
    stub: Stub, data: Path, tmp_path: Path, served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"rates": "2", "policies": "fixed:0,goodput", "settings": SETTINGS, "url": None, "model": None}
    plan = plan_of(stub, data, arrivals="poisson", repeats=2, seed=3, **asked)
    plain, ours = sweep.run(plan, tmp_path / "out")
    assert stub.rounds == 4
    assert re.search(r"round 4 of 4: \S+ at 2/s, repeat 2 of 2\n", capsys.readouterr().err)
    assert [row["rounds"] for row in (plain, ours)] == [2, 2]
    assert len(ours["ratios"]["fixed:0"]["latency.mean"]["by_repeat"]) == 2
    first, second = (tmp_path / "out/rounds" / name for name in ("arrivals-2.jsonl", "arrivals-2-2.jsonl"))
    assert first.read_text() != second.read_text()
    sweep.run(plan_of(stub, data, arrivals="poisson", seed=4, **asked), tmp_path / "next")
    assert (tmp_path / "next/rounds/arrivals-2.jsonl").read_text() == second.read_text()
    # Nothing is left to do, and only a finished repeat counts.
    sweep.run(plan, tmp_path / "out")
    assert stub.rounds == 6
    shutil.rmtree(next((tmp_path / "out/rounds").glob("2-goodput-*-2")))
    plain, ours = sweep.results(plan, tmp_path / "out")
    assert [(row["rounds"], row["ratios"]) for row in (plain, ours)] == [(2, None), (1, None)]


@pytest.mark.usefixtures("guidellm")
def test_sweep_resumes(stub: Stub, data: Path, tmp_path: Path) -> None:
    out, plan = tmp_path / "out", plan_of(stub, data, rates="1,2,3")
    stub.dies_after = 1
    with pytest.raises(ServerDied, match="cannot be reached"):
        sweep.run(plan, out)
    assert [row["rate"] for row in json.loads((out / "sweep.json").read_text())] == [1.0]
    assert sorted(path.name[:2] for path in (out / "rounds").iterdir() if path.is_dir()) == ["1-"]
    stub.dies_after, stub.rounds = 1 << 30, 0
    stub.rule |= {"ttft": 0.3}
    results = sweep.run(plan, out)
    assert stub.rounds == 2
    assert [round(row["ttft"]["p50"], 3) for row in results] == [0.1, 0.3, 0.3]
    sweep.run(plan, out)
    assert stub.rounds == 2


@pytest.mark.usefixtures("guidellm")
def test_folder_of_another_sweep(stub: Stub, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep.run(plan_of(stub, data, rates="2"), out)
    with pytest.raises(UserError, match=r"other options \(rates; rates: \[2.0\] there, \[2.0, 3.0\] here\)"):
        sweep.run(plan_of(stub, data, rates="2,3"), out)
    arrivals = out / "rounds/arrivals-2.jsonl"
    arrivals.write_text(arrivals.read_text() + "\n")
    with pytest.raises(UserError, match="was changed: finished rounds"):
        sweep.run(plan_of(stub, data, rates="2"), out)
    (out / "load.json").unlink()
    with pytest.raises(UserError, match=r"without load.json"):
        sweep.run(plan_of(stub, data, rates="2"), out)
    with pytest.raises(UserError, match="is a file; give a folder"):
        sweep.run(plan_of(stub, data, rates="2"), data)


@pytest.mark.usefixtures("guidellm")
def test_missing_report(stub: Stub, data: Path, tmp_path: Path) -> None:
    stub.rule |= {"breaks": True}
    with pytest.raises(UserError, match=r"no valid report .* said last"):
        sweep.run(plan_of(stub, data), tmp_path / "out")
    assert not [path for path in (tmp_path / "out/rounds").iterdir() if path.is_dir()]


@pytest.mark.usefixtures("guidellm")
def test_unreachable_server_and_unknown_model(stub: Stub, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model 'other': it has m"):
        sweep.run(plan_of(stub, data, model="other"), tmp_path / "out")
    with pytest.raises(UserError, match=r"cannot be reached: .*refused"):
        sweep.run(plan_of(stub, data, url="http://127.0.0.1:9"), tmp_path / "other")


def test_missing_guidellm(stub: Stub, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed: pip install 'guidellm"):
        sweep.run(plan_of(stub, data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("guidellm")
def test_sweep_with_trace(stub: Stub, data: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:{second}.0000000,100,{second}\n" for second in range(10, 50))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    (row,) = sweep.run(plan_of(stub, data, rates="4", arrivals=str(trace), max_tokens=20), tmp_path / "out")
    assert (row["requests"], row["arrivals"]) == (20, str(trace))
    arrivals = [json.loads(line) for line in (tmp_path / "out/rounds/arrivals-4.jsonl").read_text().splitlines()]
    assert [one["output_tokens_count"] for one in arrivals] == [*range(10, 20), *[20] * 10]
    with pytest.raises(UserError, match=r"trace.csv: the trace has 40 requests, and 40/s for 5 s are 200"):
        sweep.run(plan_of(stub, data, rates="40", arrivals=str(trace)), tmp_path / "more")


@pytest.mark.usefixtures("guidellm")
def test_sweep_without_answers(stub: Stub, data: Path, tmp_path: Path) -> None:
    stub.rule |= {"refused": list(range(10))}
    (row,) = sweep.run(plan_of(stub, data, rates="2", slo="ttft=1"), tmp_path / "out")
    assert (row["completed"], row["refused"], row["ttft"]["p50"], row["output_tokens_per_second"]) == (0, 10, None, 0)
    assert row["notes"] == ["no request was completed", "the server refused 10 of 10 requests"]
