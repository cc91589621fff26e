"""Sweeps of ``specdec load`` in the report: of the jobs, given by --load, and invalid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.generator import RequestRecord
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.results import Measurement, result
from ianvs_specdec.load.rounds import Round, RoundKey
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.page import to_html
from ianvs_specdec.report.sweeps import sweeps
from tests.support.workspace import Bench


def sweep(folder: Path, slo: dict[str, float] | None = None) -> list[dict[str, Any]]:
    """What ``specdec load`` writes of two policies at two rates."""
    plan = SweepPlan(rates=(1.0, 2.0), data="d", duration=10.0, arrivals="poisson", slo=slo or {})
    rows = []
    for rate in plan.rates:
        for policy, pause in (("fixed:0", 0.2), ("<b>goodput</b>", 0.1)):
            dues = [2.0 + second / rate for second in range(8)]
            last = [(due, due + 0.1, due + 0.1 + 9 * pause * rate) for due in dues]
            answered = [
                RequestRecord(i, due, "completed", due, first, end, end, 3, 10, "x")
                for i, (due, first, end) in enumerate(last)
            ]
            measured = Measurement.of([Round(RoundKey(rate, policy), 1000.0, 3.0, answered, [])], plan)
            rows.append(result(measured, plan, None, {}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(rows))
    return rows


def test_a_jobs_own_sweep_is_in_the_report_with_its_intervals(bench: Bench) -> None:
    rows = sweep(bench.folder / "load", slo={"latency": 1.5})
    (found,) = collect(bench.folder)["load"]
    named = {"job": "job", "name": "load", "arrivals": "poisson", "slo": {"latency": 1.5}}
    assert {name: found[name] for name in named} == named
    for point, row in zip(found["points"], rows, strict=True):
        assert (point["policy"], point["rate"]) == (row["policy"], row["rate"])
        assert point["throughput"] == [row["output_tokens_per_second"], *row["intervals"]["output_tokens_per_second"]]
        assert point["p99"] == [row["latency"]["p99"], *row["intervals"]["latency"]["p99"]]
        assert point["goodput"][0] == row["slo_goodput"]


def test_a_given_sweep_belongs_to_all_jobs(bench: Bench, tmp_path: Path) -> None:
    sweep(tmp_path / "elsewhere")
    assert main(["report", str(bench.folder), "--load", str(tmp_path / "elsewhere"), "--json", "all.json"]) == 0
    (found,) = json.loads(Path("all.json").read_text())["load"]
    assert (found["job"], found["name"], found["points"][0]["goodput"]) == (None, "elsewhere", None)


@pytest.mark.parametrize("text", ["", "[]", '["p"]', "[" * 5000, '[{"policy": "p", "rate": "fast"}]'])
def test_an_invalid_sweep_is_a_note_or_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    notes: list[str] = []
    assert sweeps({"job": tmp_path}, [], notes) == []
    assert str(path) in notes[0]
    assert "is no sweep, as `specdec load` writes it" in notes[0]
    with pytest.raises(UserError, match="is no sweep"):
        sweeps({}, [tmp_path], notes)


def test_an_invalid_sweep_in_the_command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.folder / "sweep.json"
    path.write_text('[{"policy": "p", "rate": "fast"}]')
    document = collect(bench.folder)
    assert document["load"] == []
    assert any(str(path) in note and "is no sweep" in note for note in document["notes"])
    assert main(["report", str(bench.folder), "--load", str(bench.folder), "--out", "page.html"]) == 2
    error = capsys.readouterr().err
    assert "is no sweep, as `specdec load` writes it" in error
    assert error.count("\n") == 1
    assert not Path("page.html").exists()


@pytest.mark.slow
def test_the_page_draws_a_line_for_each_policy(
    bench: Bench, document: dict[str, Any], browse: Callable[..., str]
) -> None:
    page = bench.root / "page.html"
    page.write_text(to_html(document), encoding="utf-8")
    assert '<section id="load" aria-labelledby="load-title" hidden' in browse(page)
    sweep(bench.folder / "load", slo={"latency": 1.5})
    page.write_text(to_html(collect(bench.folder)), encoding="utf-8")
    drawn = browse(page).partition('<section id="load"')[2].partition("</section>")[0]
    assert drawn.count("<figcaption>") == 3
    # Two policies in three panels, and p99 beside p50.
    assert drawn.count('class="line"') == 8
    assert drawn.count('class="band"') == 6
    assert drawn.count('aria-label="fixed:0, 1 requests/s') == 3
    assert "<b>goodput" not in drawn
