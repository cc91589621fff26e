"""The measurement of a drift: its APGR is route eval's, its drift changes the groups that were drawn, and it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.lifelong import apgr, drifted, main
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.curve import Sides
from ianvs_specdec.routing.evaluation.quality import Scored
from ianvs_specdec.routing.evaluation.results import evaluate
from ianvs_specdec.routing.outcomes.recorded import Outcomes, save_outcomes


def outcomes(rows: int) -> Outcomes:
    generator = np.random.default_rng(0)
    queries = tuple(
        Query((f"question {index} of {'abcd'[index % 4] * 5}",), group="abcd"[index % 4]) for index in range(rows)
    )
    edge, cloud = (generator.random(rows) < share for share in (np.arange(rows) % 4 / 4, 0.9))
    return Outcomes(queries, edge.astype(np.float64), cloud.astype(np.float64))


def test_apgr_is_that_of_route_eval() -> None:
    known = outcomes(400)
    scores = np.random.default_rng(1).integers(0, 9, 400) / 9
    found = (
        evaluate(Sides(known.edge, known.cloud), [Scored("router", scores)], resamples=10, seed=0).results[-1].metrics
    )
    assert apgr(scores, known) == pytest.approx(found["apgr"].value)


def test_the_edge_changes_in_the_groups_that_were_drawn() -> None:
    known = outcomes(400)
    groups = np.array(known.groups)
    after = drifted(known, groups, ["d", "a"], np.random.default_rng(0))
    changed = after.edge != known.edge
    assert set(groups[changed]) == {"a", "d"}
    assert (after.edge[groups == "a"] == known.cloud[groups == "a"]).all()
    assert after.edge[groups == "d"].sum() < 0.5 * known.edge[groups == "d"].sum()


def test_it_prints_a_line_for_each_kind_of_feedback_and_their_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_outcomes(tmp_path / "outcomes.jsonl", outcomes(240))
    arguments = ["--outcomes", str(tmp_path / "outcomes.jsonl"), "--kind", "knn", "--seeds", "1", "--feedbacks", "20"]
    assert main([*arguments, "--drift", "edge"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["0", name] for name in ("both", "routed", "cascade")]
    assert [line.split()[0] for line in lines[4:]] == ["mean"] * 3


def test_a_probe_learns_from_the_states_that_the_edge_has_read_once(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    save_outcomes(tmp_path / "outcomes.jsonl", outcomes(240))
    arguments = ["--outcomes", str(tmp_path / "outcomes.jsonl"), "--kind", "probe", "--feedback", "routed"]
    arguments += ["--edge-set", f"model={tiny_model}", "--set", "layers=[1]", "--set", "ridge=1.0", "--seeds", "1"]
    assert main([*arguments, "--feedbacks", "20"]) == 0
    first = capsys.readouterr()
    assert "prompts" in first.err
    assert [line.split()[:2] for line in first.out.splitlines()[1:]] == [["0", "routed"], ["mean", "routed"]]
    assert main([*arguments, "--feedbacks", "0"]) == 0
    again = capsys.readouterr()
    frozen, now = (float(cell) for cell in again.out.splitlines()[1].split()[2:4])
    assert frozen == now, "nothing is learned without feedback"
