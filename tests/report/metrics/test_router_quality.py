"""Router AUROC and Router APGR: what the other side would have made of a query comes from the row or the journal."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.errors import warn_once
from ianvs_specdec.common.types import Completion, Query, Sampling, Trace
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.records.response import Response
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.router_quality import why_empty
from ianvs_specdec.report.metrics.table import Table

EDGE, CLOUD, GOLD = "BCBCBCBC", "BBBBBBBC", "B" * 8
"""The cloud is better at the questions 1, 3 and 5."""
KNOWING = [0.1, 0.9, 0.2, 0.8, 0.3, 0.4, 0.5, 0.0]
NAMES = ("Router AUROC", "Router APGR", "Router AUROC CI95", "Router APGR CI95")


def completion(letter: str) -> Completion:
    return Completion(f"The answer is {letter}.", [1], 5, 1, "stop", Trace([(0.1, 1)]))


def configuration(side: str, **sampling: Any) -> Configuration:
    return Configuration(side, {"model": f"files of {side}", "sampling": Sampling(**sampling).to_json()})


def messages(index: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Question {index}?"}]


def response(side: str, index: int, score: float | None, **details: Any) -> Response:
    query = Query((f"Question {index}?",), f"q{index}", scorer="choice")
    answer = completion((EDGE if side == "edge" else CLOUD)[index])
    turn = turn_of(answer, key=configuration(side).key(messages(index)), replayed=False, cached=False, hardware="h")
    routing = None if score is None else {"router": "R", "score": score, "hard": side == "cloud", "seconds": 1e-5}
    known = {"side": side, "model": side, "greedy": True, "lossy": False, "slo": None, "cost": None, "routing": routing}
    made = response_of(query, [answer], [turn], **{**known, **details})
    made.row = {"query": query.to_json(), "gold": GOLD[index], "index": index}
    return made


def rows(scores: list[float | None], *, cascade: bool = False) -> list[list[Any]]:
    found = []
    for index, score in enumerate(scores):
        hard = score is not None and score >= 0.35
        result = response("cloud" if hard else "edge", index, score)
        edge = response("edge", index, score) if cascade and hard else None if hard else result
        found.append([hard, result, edge, result if hard else None])
    return found


def kept(job: Path, side: str, indices: range, **sampling: Any) -> None:
    journal = Journal(job / "journal.sqlite", "run")
    for index in indices:
        answer = completion((EDGE if side == "edge" else CLOUD)[index])
        journal.put(configuration(side, **sampling), messages(index), answer, side=side, hardware={"a": 1})


def values(results: list[list[Any]]) -> dict[str, float]:
    golds = np.array(list(GOLD), dtype=object)
    return {name: METRICS[name](golds, results) for name in NAMES}


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "algorithm"))
    return tmp_path


def test_the_journal_knows_what_the_other_side_answered(job: Path) -> None:
    for side in ("edge", "cloud"):
        kept(job, side, range(8))
    found = values(rows(list(KNOWING)))
    # Better are 1, 3 and 5; of 15 pairs with the others one is the wrong way round: 6 before 5.
    assert found["Router AUROC"] == pytest.approx(14 / 15, abs=1e-6)
    gained = [0, 1, 2, 2, 3, 3, 3, 3, 3]
    area = sum((a + b) / 2 for a, b in itertools.pairwise(gained)) / (8 * 3)
    assert found["Router APGR"] == pytest.approx(area, abs=1e-6)
    assert 0 < found["Router APGR CI95"] < 0.5
    assert 0 < found["Router AUROC CI95"] < 0.5


def test_rows_with_both_answers_need_no_journal_for_that_side(job: Path) -> None:
    kept(job, "cloud", range(8))
    assert values(rows(list(KNOWING), cascade=True))["Router AUROC"] == pytest.approx(14 / 15, abs=1e-6)


def test_other_sampling_is_another_models(job: Path) -> None:
    kept(job, "edge", range(8))
    kept(job, "cloud", range(3), temperature=0.0)
    kept(job, "cloud", range(8), temperature=0.7)
    assert all(math.isnan(value) for value in values(rows(list(KNOWING))).values())


def test_answers_with_log_probabilities_are_the_same_models(job: Path) -> None:
    kept(job, "edge", range(8))
    kept(job, "cloud", range(1, 8, 2))
    kept(job, "cloud", range(8), logprobs=True)
    assert values(rows(list(KNOWING)))["Router AUROC"] == pytest.approx(14 / 15, abs=1e-6)


def test_one_unknown_outcome_makes_all_undefined(job: Path) -> None:
    kept(job, "edge", range(8))
    kept(job, "cloud", range(1, 8))
    assert all(math.isnan(value) for value in values(rows(list(KNOWING))).values())
    failed = rows(list(KNOWING))
    failed[0][1].update(error="no answer", turns=[])
    assert values(failed)["Router AUROC"] == pytest.approx(11 / 12, abs=1e-6)


def test_empty_columns_have_a_reason(job: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    kept(job, "edge", range(8))
    kept(job, "cloud", range(1, 8))
    values(rows(list(KNOWING)))
    (record,) = caplog.records
    assert record.getMessage() == (
        "Router AUROC and Router APGR are empty: the cloud model's answer is known for 7 of 8 only; put "
        "CloudOnly or OracleRouter before this router in the job"
    )
    low = [0.01 * index for index in range(8)]
    for scores, told in (
        ([0.3] * 8, "the same score"),
        ([None] * 8, "gave no score"),
        (low, "no query went to the cloud model"),
    ):
        results = rows(scores)
        assert all(math.isnan(value) for value in values(results).values())
        assert told in why_empty(list(GOLD), results, Table.of(list(GOLD), results))
