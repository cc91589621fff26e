"""A cascade of several routers that may stop the edge's answer: what stops, what it costs, what is continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.columns import all_columns
from ianvs_specdec.report.metrics.router_quality import why_empty
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.routing.learned.uncertainty import EarlyModel, UncertaintyModel
from ianvs_specdec.routing.routers import build_router, check_router, check_router_in_test_case
from ianvs_specdec.workspace.sides import side_answer
from tests.routing.routers import edge_jobs
from tests.routing.routers.edge_jobs import ROWS

FIRST, WHOLE = 3, 8
ALL, NONE = 0.0, 1.0
"""Thresholds at which every answer stops, and none."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that the engine has written for each request, without its warming up."""
    written: list[int] = []
    decode = EngineLLM._decode

    def decoded(self: Any, *arguments: Any) -> Any:
        found = decode(self, *arguments)
        written.append(len(found[0]))
        return found

    monkeypatch.setattr(EngineLLM, "_decode", decoded)
    monkeypatch.setattr(EngineLLM, "_warm_up", lambda self: None)
    return written


def forget(job: Path) -> None:
    """A journal that knows nothing."""
    Journal._open.clear()
    for file in job.glob("journal.sqlite*"):
        file.unlink()


def calibration(folder: Path, threshold: float, **slopes: float) -> str:
    """One that sends to the cloud what is stopped, and no more."""
    slopes = slopes or {"max_entropy": 1.0}
    begun = EarlyModel(FIRST, UncertaintyModel(tuple(slopes), slopes, 0.0, threshold))
    path = folder / f"cascade{threshold}.json"
    UncertaintyModel(tuple(slopes), slopes, 0.0, 1.0, early=begun).save(path)
    return str(path)


def cascade(file: str, **more: Any) -> dict[str, Any]:
    return {"name": "CascadeRouter", "calibration": file, "decide_after": FIRST, **more}


def run(model: Path, router: Any, rows: list[dict[str, Any]] = ROWS, **edge: Any) -> list[Any]:
    return edge_jobs.run(model, router, rows, **{"logprobs": True, **edge})


def value(name: str, rows: list[Any]) -> float:
    return all_columns()[name](Table(["B"] * len(rows), rows))


@pytest.mark.slow
def test_what_will_not_do_stops_there_and_goes_to_the_cloud(
    job: Path, tmp_path: Path, tiny_model: Path, asked: list[int], new_run: Any
) -> None:
    whole = run(tiny_model, "EdgeOnly", logprobs=False)
    asked.clear()
    router = cascade(calibration(tmp_path, ALL))
    found = run(tiny_model, router)
    assert asked == [FIRST, WHOLE] * 4
    for (hard, result, _, cloud), (_, plain, _, _) in zip(found, whole, strict=True):
        assert (hard, cloud["side"], result["side"]) == (True, "cloud", "cloud")
        begun = result["edge_answer"]
        assert begun["stopped"] == {"tokens": FIRST, "saved": WHOLE - FIRST}
        assert begun["turns"][0]["token_ids"] == plain["turns"][0]["token_ids"][:FIRST]
        assert begun["turns"][0]["baseline"]["identical"]
        assert result["routing"]["decide_after"] == FIRST
        assert side_answer(begun) is None
    assert value("Early Exits", found) == 100.0
    assert value("Edge Tokens Saved", found) == 4 * (WHOLE - FIRST)
    assert value("Edge Completion Tokens", found) == 4 * FIRST
    assert np.isnan(value("Early Exits", whole))
    asked.clear()
    new_run()
    again = run(tiny_model, router)
    assert not asked
    assert [row[1]["routing"] for row in again] == [row[1]["routing"] for row in found]


@pytest.mark.parametrize("backend", ["autoregressive", "PromptLookup"])
def test_what_goes_on_is_continued_and_counts_both_requests(
    job: Path, tmp_path: Path, tiny_model: Path, asked: list[int], backend: str
) -> None:
    router = cascade(calibration(tmp_path, NONE))
    found = run(tiny_model, router, backend=backend)
    assert asked == [FIRST, WHOLE - FIRST] * 4
    asked.clear()
    plain = run(tiny_model, "EdgeOnly", backend=backend)
    assert asked == [WHOLE] * 4, "an answer that was interrupted has taken another time"
    for (hard, result, _, _), (_, usual, _, _) in zip(found, plain, strict=True):
        assert (hard, "stopped" in result) == (False, False)
        turn, other = result["turns"][0], usual["turns"][0]
        for name in ("token_ids", "completion", "finish_reason"):
            assert turn[name] == other[name]
        assert turn["baseline"] is None or turn["baseline"]["identical"]
        read = usual["usage"]["prompt_tokens"]
        assert result["usage"]["prompt_tokens"] == read + (read + FIRST)
        trace = turn["trace"]
        assert sum(tokens for _, tokens in trace["chunks"]) == WHOLE
        assert trace["confidence"] == pytest.approx(np.array(other["trace"]["confidence"]), abs=1e-4)
    assert (value("Early Exits", found), value("Edge Tokens Saved", found)) == (0.0, 0.0)


def test_a_probe_and_the_text_are_part_of_it(
    job: Path, tmp_path: Path, tiny_model: Path, folder: Path, asked: list[int]
) -> None:
    alone = run(tiny_model, {"name": "LearnedRouter", "path": str(folder), "threshold": 1.0})
    slopes = {"max_entropy": 1.0, "mind": 1.0, "router": 1.0}
    more = {"router": {"name": "RandomRouter", "seed": 5}, "routers": {"mind": str(folder)}}
    asked.clear()
    found = run(tiny_model, cascade(calibration(tmp_path, ALL, **slopes), **more), seed=1)
    assert asked == [FIRST, WHOLE] * 4
    for (_, result, _, _), (_, one, _, _) in zip(found, alone, strict=True):
        assert result["routing"]["doubts"].keys() == slopes.keys()
        assert result["routing"]["doubts"]["mind"] == one["routing"]["score"]


def test_whoever_overrules_it_has_the_answer_continued(
    job: Path, tmp_path: Path, tiny_model: Path, asked: list[int]
) -> None:
    around = {"name": "BudgetRouter", "router": cascade(calibration(tmp_path, ALL)), "cloud_share": 0.0}
    found = run(tiny_model, around)
    assert asked == [FIRST, WHOLE - FIRST] * 4
    plain = run(tiny_model, "EdgeOnly")
    for (hard, result, _, _), (_, usual, _, _) in zip(found, plain, strict=True):
        assert (hard, result["completion"]) == (False, usual["completion"])
        assert "stopped" not in result


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", ["inside", "across"])
def test_a_stop_string_across_the_seam_is_found(
    job: Path, tmp_path: Path, tiny_model: Path, asked: list[int], stop_at: str
) -> None:
    ((_, usual, _, _),) = run(tiny_model, "EdgeOnly", ROWS[:1])
    ends = np.cumsum(usual["turns"][0]["trace"]["characters"])
    text, seam = usual["completion"], int(ends[FIRST - 1])
    stop = text[seam - 1 : seam + 1] if stop_at == "across" else text[seam : seam + 2]
    ((_, whole, _, _),) = run(tiny_model, "EdgeOnly", ROWS[:1], stop=[stop])
    forget(job)
    asked.clear()
    ((_, found, _, _),) = run(tiny_model, cascade(calibration(tmp_path, NONE)), ROWS[:1], stop=[stop], use_cache=False)
    for name in ("completion", "finish_reason", "token_ids"):
        assert found["turns"][0][name] == whole["turns"][0][name]


def test_coupled_samples_are_continued_and_others_are_refused(
    job: Path, tmp_path: Path, tiny_model: Path, asked: list[int]
) -> None:
    drawn = {"backend": "PromptLookup", "temperature": 0.9, "acceptance": "coupled"}
    usual = run(tiny_model, "EdgeOnly", **drawn)
    forget(job)
    asked.clear()
    router = cascade(calibration(tmp_path, NONE))
    found = run(tiny_model, router, **drawn, use_cache=False)
    assert asked == [FIRST, WHOLE - FIRST] * 4
    assert [row[1]["completion"] for row in found] == [row[1]["completion"] for row in usual]
    with pytest.raises(UserError, match="cannot be continued") as refused:
        run(tiny_model, router, temperature=0.9)
    assert refused.value.key == "decide_after"
    edge = {"model": str(tiny_model), "logprobs": True, "temperature": 0.9}
    with pytest.raises(UserError, match="acceptance: coupled"):
        check_router_in_test_case(router, {"edgemodel": (EdgeModel, edge)})


def test_what_cannot_work_is_told_before_anything_runs(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    file = calibration(tmp_path, ALL)
    whole = tmp_path / "whole.json"
    UncertaintyModel(("max_entropy",), {"max_entropy": 1.0}).save(whole)
    two = {"signal": ["a", "b"], "routers": {"a": str(folder), "b": str(folder)}}
    for given, key, message in (
        ({**cascade(file), "decide_after": 5}, "decide_after", r"--after 5 made; .* has 3"),
        (cascade(str(whole)), "decide_after", "--after 3"),
        (cascade(file, threshold=0.5), "threshold", "leave threshold out"),
        ({"name": "CascadeRouter", **two}, "routers", "one probe"),
        ({"name": "CascadeRouter", "signal": "a", "routers": {"a": "nowhere"}}, "routers", "nowhere"),
        (
            {"name": "CascadeRouter", "signal": "max_entropy", "routers": {"max_entropy": str(folder)}},
            "routers",
            "another",
        ),
    ):
        for use in (check_router, build_router):
            with pytest.raises(UserError, match=message) as told:
                use(given)
            assert told.value.key == key
    edge = {"model": str(tiny_model), "logprobs": True}
    for settings, message in (({**edge, "backend": "api"}, "first tokens"), ({"model": "m"}, "logprobs: true")):
        with pytest.raises(UserError, match=message):
            check_router_in_test_case(cascade(file), {"edgemodel": (EdgeModel, settings)})
    check_router_in_test_case(cascade(file), {"edgemodel": (EdgeModel, edge)})


def test_what_ended_early_is_not_taken_for_the_edge_s_answer(job: Path, tmp_path: Path, tiny_model: Path) -> None:
    whole = run(tiny_model, "EdgeOnly")
    golds = [{"references": [row[1]["completion"]]} for row in whole]
    rows = [
        {"query": {"turns": [f"question {place}"], "scorer": "text"}, "gold": gold, "index": place}
        for place, gold in enumerate(golds)
    ]
    found = run(tiny_model, cascade(calibration(tmp_path, ALL)), rows)
    assert all("stopped" in row[1]["edge_answer"] for row in found)
    assert np.isnan(METRICS["Router APGR"](golds, found)), "nothing tells which configuration the whole answers have"
    scores = sorted(row[1]["routing"]["score"] for row in found)
    found = run(tiny_model, cascade(calibration(tmp_path, float(np.mean(scores[:2])))), rows)
    assert sum(row[0] for row in found) == 3
    # Both sides are one model. By its first tokens alone the edge would be worse.
    assert why_empty(golds, found, Table(golds, found)) == "both models do equally well on these queries"


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"slopes": {"other": 1.0}}])
def test_a_damaged_beginning_is_one_message(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = Path(calibration(tmp_path, 0.5))
    told = json.loads(path.read_text())
    told["after"] |= wrong
    path.write_text(json.dumps(told))
    with pytest.raises(UserError, match="not a file that specdec route calibrate made"):
        UncertaintyModel.load(path)
