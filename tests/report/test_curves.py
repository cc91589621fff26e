"""Cost-quality curves: the ends, the bound, each router at every threshold, and where outcomes come from."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.curves import Outcome, curves
from tests.support.workspace import PRICE, Bench, Side, completion


def outcomes(pairs):
    return {index: (Outcome(edge, 0.0), Outcome(cloud, 1e-3)) for index, (edge, cloud) in enumerate(pairs)}


def test_ends_and_bound():
    found = curves(outcomes([(0, 100), (100, 100), (100, 0), (0, 0)]), [])
    assert found["ends"] == [(0, 0, 50), (100, 1, 50)]
    # First the query that the cloud alone answers, then those that make no difference, last the one it spoils.
    assert [tuple(point) for point in found["bound"]] == [(0, 0, 50), (25, 0.25, 75), (75, 0.75, 75), (100, 1, 50)]


def test_a_routers_curve_is_its_accuracy_at_every_threshold():
    draw = random.Random(0)
    both = outcomes([(100.0 * draw.randint(0, 1), 100.0 * draw.randint(0, 1)) for _ in range(50)])
    scores = {index: draw.randint(0, 9) / 9 for index in both}
    (curve,) = curves(both, [(0, "R", scores)])["curves"]
    expected = set()
    for threshold in (*set(scores.values()), 2.0):
        sent = [score >= threshold for score in scores.values()]
        right = [pair[1].score if hard else pair[0].score for pair, hard in zip(both.values(), sent, strict=True)]
        expected.add((100.0 * np.mean(sent), float(np.mean(sent)), float(np.mean(right))))
    assert {tuple(point) for point in curve["points"]} == {tuple(float(f"{v:.6g}") for v in p) for p in expected}


def test_every_router_has_one_curve():
    draw = random.Random(2)
    both = outcomes([(100.0 * draw.randint(0, 1), 100.0) for _ in range(30)])
    scores = {index: draw.random() for index in both}
    noisy = {index: score + draw.uniform(-4e-6, 4e-6) for index, score in scores.items()}
    routers = [(0, "Cascade", scores), (1, "Cascade", noisy), (2, "Learned", scores), (3, "Budget", scores)]
    found = curves(both, routers)
    named = [(curve["router"], curve["cases"]) for curve in found["curves"]]
    assert named == [("Cascade", [0, 1]), ("Learned", [2]), ("Budget", [3])]
    learned, budget = ({**curve, "router": "", "cases": []} for curve in found["curves"][1:])
    assert learned == budget
    for name, (low, high) in learned["intervals"].items():
        assert low <= learned[name] <= high
    assert set(learned["intervals"]) >= {"apgr", "auroc", "cpt50"}


def test_why_a_router_has_no_curve():
    both = outcomes([(0, 100), (100, 0), (0, 100)])
    routers = [(4, "EdgeOnly", dict.fromkeys(both, 0.0)), (5, "Silent", {0: 0.5, 1: 0.25})]
    found = curves(both, routers)
    assert found["curves"] == []
    assert found["without"] == [
        {"router": "EdgeOnly", "case": 4, "reason": "one score for all queries"},
        {"router": "Silent", "case": 5, "reason": "no score for 1 of the 3 queries"},
    ]


def test_outcomes_come_from_all_test_cases_of_a_pair(document):
    (panel,) = document["routing"]
    assert panel["queries"] == 8
    assert [end[2] for end in panel["ends"]] == [50.0, 87.5]
    assert panel["ends"][1][1] == pytest.approx(1000 * PRICE["cloud"])
    (curve,) = panel["curves"]
    assert curve["router"] == "OddRouter"
    at_half = next(point for point in curve["points"] if point[0] == 50.0)
    odd = next(case for case in document["cases"] if case["router"] == "OddRouter")
    assert at_half[1] == pytest.approx(odd["figures"]["Cloud Cost"])
    assert at_half[2] == odd["figures"]["Accuracy"] == 87.5


def test_missing_answers_come_from_the_journal(bench: Bench, document):
    whole = document["routing"][0]
    journal = Journal(bench.folder / "journal.sqlite", "run")
    sampling = Sampling()
    config = Configuration("cloud", {"sampling": sampling.to_json()})
    for index, row in enumerate(bench.rows):
        text = "The answer is C." if index == 7 else "The answer is B."
        messages = [{"role": "user", "content": row["question"]["turns"][0]}]
        journal.put(config, messages, completion(text), side="cloud", hardware={"a": 1})
    shutil.rmtree(bench.folder / "cloudonly")
    left = collect(bench.folder)["routing"][0]
    assert left["queries"] == 8
    assert [end[2] for end in left["ends"]] == [end[2] for end in whole["ends"]]
    assert left["ends"][1][1] is None, "half of the prices are not known: the test case's settings have none"


def test_lossy_answers_are_not_the_models(bench: Bench):
    lossy = Side("cloud", "Medusa", [completion("The answer is A.")], details={"lossy": True})
    shutil.rmtree(bench.folder / "cloudonly")
    bench.case("CloudOnly", [(None, lossy)] * 8, backend="Medusa")
    (panel,) = [panel for panel in collect(bench.folder)["routing"] if "curves" in panel]
    assert panel["queries"] == 4, "the odd router's cloud answers alone, and the edge's"
