"""The energy of answers: shared where requests overlap, kept for a replay, and empty with its reason."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.energy import Counter, Meter, Power
from ianvs_specdec.common.types import Completion, Energy, Trace
from ianvs_specdec.plugin import energy
from ianvs_specdec.plugin.energy import MACHINE, EnergyShares
from ianvs_specdec.plugin.response import Attempt, turn_of
from ianvs_specdec.records.continuation import first_tokens, joined
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.metrics import METRICS
from tests.report.metrics.traces import cloud_row, edge_row, response, value
from tests.support.edge import Start, edge, row
from tests.support.workspace import Bench, choice, usual

WATTS, IDLE = 50.0, 20.0


class Rising(Meter):
    """A machine whose counter rises with time, and with ``joules`` beside it."""

    def __init__(self, joules: list[float] | None = None) -> None:
        super().__init__(Path("/nowhere"))
        beside = joules or [0.0]
        self._sources = [Counter("RAPL package-0", lambda: WATTS * self._since + beside[0])]
        self.source = "RAPL package-0"


@pytest.fixture(autouse=True)
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "SAMPLING", 3600.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def rising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MACHINE, "meter", Rising())
    monkeypatch.setattr(MACHINE, "idle", IDLE)


def used(joules: float, seconds: float, idle: float | None = None) -> Any:
    return pytest.approx((joules, seconds, idle or IDLE * seconds))


def parts(energy: Energy | None) -> tuple[float | None, ...]:
    assert energy is not None
    return energy.joules, energy.seconds, energy.idle


def test_requests_that_overlap_share_what_is_used(clock: list[float]) -> None:
    shares = EnergyShares(Rising())
    shares.idle = IDLE
    first = shares.begin({})
    clock[0] += 1.0
    second = shares.begin({})
    assert shares.begin({"server": "api.example.com"}) is None, "takes no share"
    clock[0] += 2.0
    assert parts(shares.end(first)) == used(100.0, 2.0)
    clock[0] += 3.0
    assert parts(shares.end(second)) == used(200.0, 4.0)
    clock[0] += 100.0
    third = shares.begin({})
    clock[0] += 1.0
    assert parts(shares.end(third)) == used(50.0, 1.0), "what was used before it is nobody's"


def test_what_cannot_be_read_meanwhile_is_unknown(clock: list[float]) -> None:
    joules = [1e-9]
    shares = EnergyShares(Rising(joules))
    whole = shares.begin({})
    joules[0] = math.nan
    clock[0] += 1.0
    assert shares.end(shares.begin({})) is None
    joules[0] = 1.0
    clock[0] += 1.0
    assert shares.end(shares.begin({})) is None, "what it counts from is not known"
    later = shares.begin({})
    assert shares.end(whole) is None
    clock[0] += 1.0
    assert shares.end(later) is not None
    assert "RAPL package-0" in shares.why_unknown({})


def test_a_long_request_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that wraps and is back where it was, and a power that is high in between only."""
    monkeypatch.setattr(energy, "SAMPLING", 0.001)
    joules, watts = [50.0], [0.0]
    meter = Meter(Path("/nowhere"))
    meter._sources = [Counter("RAPL package-0", lambda: joules[0], 100.0), Power("battery", lambda: watts[0])]
    shares = EnergyShares(meter)
    mark = shares.begin({})
    joules[0], watts[0] = 10.0, 1000.0
    deadline = time.monotonic() + 60
    while shares._joules < 65.0 and time.monotonic() < deadline:
        time.sleep(0.001)
    joules[0], watts[0] = 50.0, 0.0
    found = shares.end(mark)
    assert found is not None
    assert found.joules >= 105.0


def test_idle_power_is_measured_once(
    job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(MACHINE, "meter", Rising())
    monkeypatch.setattr(MACHINE, "idle", None)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    model = edge(tiny_model)
    MACHINE.end(MACHINE.begin({}))
    assert (MACHINE.idle, clock) == (None, [100.0]), "not in a request, beside which others may compute"
    model.load()
    model.load()
    model.cleanup()
    assert (MACHINE.idle, clock) == (WATTS, [100.0 + energy.IDLE_SECONDS])


@pytest.mark.parametrize(
    ("hardware", "reason"),
    [
        ({"server": "127.0.0.1, ::1"}, "127.0.0.1, ::1, which this job did not start, may be on another machine"),
        ({"emulate": "h100.json"}, "the speed of another machine is emulated"),
    ],
)
def test_another_machines_energy_is_not_that_of_this_one(hardware: dict[str, Any], reason: str) -> None:
    shares = EnergyShares(Rising())
    assert shares.begin(hardware) is None
    assert shares.end(None) is None
    assert shares.why_unknown(hardware) == reason


def test_workers_do_not_count_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IANVS_WORKER", "1")
    assert EnergyShares(Rising()).begin({}) is None
    assert "runner: ray" in EnergyShares(Rising()).why_unknown({})


def test_a_job_has_its_energy_and_a_replay_shows_it(
    job: Path, tiny_model: Path, new_run: Start, rising: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[dict[str, float], Any]:
        model = edge(tiny_model)
        answers = [model.predict(row(text, index=index)) for index, text in enumerate(("one", "two", "three"))]
        rows = [[False, answer, answer, None] for answer in answers]
        names = [name for name in METRICS if "Energy" in name or "Power" in name]
        told = model.environment_details()
        model.cleanup()
        return {name: METRICS[name](["B"] * 3, rows) for name in (*names, "Throughput")}, told

    before, told = run()
    assert before["Edge Mean Power"] == pytest.approx(WATTS, rel=1e-4)
    assert before["Edge Idle Power"] == pytest.approx(IDLE, rel=1e-4)
    # The busy time of an answer ends with its last chunk, that of its energy with the request.
    assert before["Edge Energy per Token"] >= WATTS / before["Throughput"] * 0.999
    assert before["Edge Energy per Token Known"] == 3
    assert math.isnan(before["Cloud Energy per Token"])
    assert told["energy"] == "RAPL package-0"

    new_run(fresh=False)
    monkeypatch.setattr(MACHINE, "meter", Meter(Path("/nowhere")))
    after, told = run()
    assert {name: str(number) for name, number in after.items()} == {name: str(before[name]) for name in before}
    assert told["energy"] == "RAPL package-0"


def test_an_empty_column_has_its_reason_in_the_report(
    job: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MACHINE, "meter", Meter(tmp_path))
    model = edge(tiny_model)
    answer = model.predict(row("one"))
    assert "energy" not in answer["turns"][0]["trace"]
    assert math.isnan(METRICS["Edge Energy per Token"](["B"], [[False, answer, answer, None]]))
    told = model.environment_details()
    model.cleanup()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.support.workspace.COLUMNS", ("Accuracy", "Edge Energy per Token", "Cloud Mean Power"))
    bench = usual(Bench(tmp_path, [choice(number) for number in range(4)]))
    for path in bench.folder.glob("*/*/environment.json"):
        modules = {"edgemodel": told, "cloudmodel": [{"energy": "RAPL package-0"}]}
        path.write_text(json.dumps({"modules": modules}), encoding="utf-8")
    cases = {case["router"]: case for case in collect(bench.folder)["cases"]}
    reason = "edge energy is empty: not measured: this machine has no RAPL, no NVML and no battery"
    assert reason in cases["EdgeOnly"]["notes"]
    assert reason in cases["OddRouter"]["notes"]
    assert (
        "cloud energy is empty: the answers are of several machines or counters, or environment.json is missing"
        in cases["CloudOnly"]["notes"]
    )
    assert reason not in cases["CloudOnly"]["notes"]


TURN = {"key": "s", "replayed": False, "cached": False, "hardware": "h1", "baseline": None}


def answer(energy: Energy | None, tokens: int = 4) -> Completion:
    trace = Trace([(1.0, 1), (2.0, tokens - 1)], energy=energy, characters=[1] * tokens)
    return Completion("B" * tokens, list(range(tokens)), 10, tokens, "stop", trace)


def test_columns_are_those_of_each_side() -> None:
    sample = answer(Energy(2.0, 0.5, 1.0))
    early = {"edge_answer": response(answer(Energy(6.0, 0.5, 2.0)))}
    rows = [
        edge_row(answer(Energy(10.0, 1.0, 5.0)), samples=[Attempt([sample], [turn_of(sample, **TURN)])]),
        cloud_row(answer(Energy(90.0, 0.3, 3.0)), **early),
        edge_row(answer(None)),
    ]
    assert value("Edge Energy per Token", rows) == pytest.approx(18.0 / 12)
    assert value("Edge Mean Power", rows) == pytest.approx(18.0 / 2.0)
    assert value("Edge Idle Power", rows) == pytest.approx(8.0 / 2.0)
    assert value("Cloud Energy per Token", rows) == pytest.approx(90.0 / 4)
    assert value("Cloud Mean Power", rows) == pytest.approx(300.0)
    assert value("Edge Energy per Token Known", rows) == 2
    read = edge_row(answer(Energy(10.0, 1.0)), prefill={"seconds": 0.1, "energy": {"joules": 1.0, "seconds": 0.1}})
    assert value("Edge Energy per Token", [read]) == pytest.approx(11.0 / 4)
    assert math.isnan(value("Edge Idle Power", [read])), "not measured"
    read = edge_row(answer(Energy(10.0, 1.0)), prefill={"seconds": 0.1})
    assert math.isnan(value("Edge Energy per Token", [read]))


def test_answers_of_two_machines_or_counters_have_none() -> None:
    rows = [
        edge_row(answer(Energy(10.0, 1.0)), replayed=True, hardware="one"),
        edge_row(answer(Energy(10.0, 1.0)), hardware="two"),
    ]
    assert math.isnan(value("Edge Energy per Token", rows))
    battery, rapl = (answer(Energy(10.0, 1.0, source=source)) for source in ("battery", "RAPL package-0"))
    rows = [edge_row(battery), edge_row(rapl), cloud_row(rapl, edge_answer=None), edge_row(answer(None))]
    assert math.isnan(value("Edge Energy per Token", rows))
    assert value("Cloud Mean Power", rows) == pytest.approx(10.0)


def test_an_answer_of_two_requests_has_the_energy_of_both() -> None:
    one, two = answer(Energy(1.0, 0.1, 0.5, "RAPL")), answer(Energy(3.0, 0.2, 1.0, "RAPL"))
    assert joined(one, two).trace.energy == Energy(4.0, pytest.approx(0.3), 1.5, "RAPL")
    assert joined(answer(None), two).trace.energy is None
    assert joined(one, answer(Energy(3.0, 0.2, source="RAPL"))).trace.energy == Energy(
        4.0, pytest.approx(0.3), source="RAPL"
    )
    assert joined(one, answer(Energy(3.0, 0.2, 1.0, "battery"))).trace.energy is None
    begun = first_tokens(one, 2)
    assert begun is not None
    assert begun.trace.energy is None, "the part of it is not known"
