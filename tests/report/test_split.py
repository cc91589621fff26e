"""Charts of split decoding: lines over the round trip, and their crossings."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.report.split import grids
from ianvs_specdec.workspace.cases import Case

STREAM, DRAFTS = {"mode": "stream"}, {"method": "draft_model", "draft": "a/folder", "mode": "split"}
EAGLE = {"backend": "EagleSpecDec", "head": "a/folder"}


def case(link: Any, edge: Any, beside: Any = None, backend: str = "SplitSpecDec", job: str = "job") -> Case:
    given = {"backend": backend, "edge": edge, "link": link, "beside": beside}
    return Case(job, "a", "i", None, config={"modules": [{"type": "cloudmodel", "hyperparameters": given}]})


def figures(milliseconds: float, rounds: float = 0.0, formula: float | None = None) -> dict[str, Any]:
    time = milliseconds / 1000
    told = {"Internal Token Latency": time, "Internal Token Latency CI95": time / 10, "Cloud Busy Time": 0.001}
    return {**told, "Rounds per Answer": rounds, "Break-Even Round Trip": formula}


def path(delay: str, up: str = "10mbit") -> dict[str, str]:
    return {"delay": delay, "up": up}


GRID = [
    (case(path("40ms"), DRAFTS), figures(9, 5, 0.07)),
    (case(path("10ms"), DRAFTS), figures(4, 5, 0.05)),
    (case(path("10ms"), STREAM), figures(6)),
    (case(path("40ms"), STREAM, {"backend": "autoregressive"}), figures(6.5)),
    (case(path("10ms"), STREAM, EAGLE), figures(3)),
]


def test_a_line_for_each_drafter_crosses_that_of_the_plain_stream() -> None:
    (grid,) = grids(*zip(*GRID, strict=True))  # type: ignore[arg-type]
    assert (grid["job"], grid["name"]) == ("job", "up 10 Mbit/s")
    drafts, plain, beside = grid["lines"]
    assert (drafts["name"], plain["name"]) == ("draft_model", "autoregressive stream")
    assert beside["name"] == f"{EAGLE['backend']} beside the model, streamed"
    assert [line["splits"] for line in grid["lines"]] == [True, False, False]
    assert drafts["points"] == [[0.02, 0.004, pytest.approx(0.0004)], [0.08, 0.009, pytest.approx(0.0009)]]
    # 2 ms sooner at 20 ms, 2.5 ms later at 80.
    assert drafts["measured"] == pytest.approx(0.02 + 0.06 * 2 / 4.5)
    assert drafts["formula"] == [0.05, 0.07]
    assert plain["points"][1][:2] == [0.08, 0.0065]
    assert len(beside["points"]) == 1


def test_each_bandwidth_and_job_has_its_own_chart() -> None:
    more = [
        (case(path("10ms", "1mbit"), DRAFTS), figures(4, 5, 0.05)),
        (case(path("10ms"), {**DRAFTS, "length": "fixed:2"}, job="other"), figures(4, 5, 0.05)),
        (case("lte", "named"), figures(4, 5, None)),
    ]
    more[2][0].module("cloudmodel")["hyperparameters"]["named"] = {"named": {**DRAFTS, "mode": "auto"}}
    found = grids(*zip(*GRID, *more, strict=True))  # type: ignore[arg-type]
    names = [[line["name"] for line in grid["lines"]] for grid in found]
    assert [grid["job"] for grid in found] == ["job", "job", "other", "job"]
    assert names[1:] == [["draft_model"], ["draft_model length=fixed:2"], ["draft_model mode=auto"]]
    assert found[3]["name"] == "up 9 Mbit/s, down 27 Mbit/s, loss 0.001"
    assert found[3]["lines"][0]["formula"] == []


@pytest.mark.parametrize(
    "one",
    [
        case(path("10ms"), DRAFTS, backend="autoregressive"),
        case({"delay": "far"}, DRAFTS),
        case([1], DRAFTS),
    ],
)
def test_other_test_cases_are_left_out(one: Case) -> None:
    assert grids([one], [figures(4, 5, 0.05)]) == []
