"""LifelongRouter: what it learns, that none of it is lost, and that a run made again decides alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.outcomes.recorded import digests
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from tests.routing.routers.lifelong_stream import MIXED, log_of, query, row, stream


def test_what_the_edge_fails_at_goes_to_the_cloud_and_nothing_else_does(path: str) -> None:
    router = LifelongRouter(path)
    stream(router, MIXED)
    after = [router.score(query(row(index, word=word))) for word in ("rivers", "minerals") for index in range(200, 230)]
    assert max(after[:30]) < 0.5 < min(after[30:])


def test_another_group_keeps_its_scores(path: str) -> None:
    router = LifelongRouter(path)
    other = query(row(1, group="old", word="zzz"))
    before = router.score(other)
    for index in range(150):
        router.learn(query(row(index, group="new")), "edge", 0.0)
        router.learn(query(row(index, group="new")), "cloud", 1.0)
        router.learn(query(row(index, group="fine", word="other words")), "edge", 1.0)
    assert abs(router.score(other) - before) < 0.1 < router.score(query(row(1, group="new"))) - before


def test_what_changed_is_learned_anew(path: str) -> None:
    router = LifelongRouter(path)
    for index in range(200):
        router.learn(query(row(index, group="g")), "edge", float(index < 150))
        router.learn(query(row(index, group="g")), "cloud", 1.0)
    assert router.score(query(row(999, group="g"))) > 0.5


def test_exploration_turns_decisions_round_whatever_the_order(path: str) -> None:
    router = LifelongRouter(path, explore=0.03)
    rows = [row(index) for index in range(300)]
    explored = {data["query"]["id"] for data in rows if router(data) and data["routing"]["reason"] == "explore"}
    assert 30 < len(explored) < 90, "six times as many where nothing is known"
    again = LifelongRouter(path, explore=0.03)
    assert explored == {data["query"]["id"] for data in rows[::-1] if again(data)}


def test_a_run_made_again_decides_alike_and_keeps_no_feedback_twice(path: str, tmp_path: Path) -> None:
    first = stream(LifelongRouter(path), MIXED)
    log = log_of(tmp_path)
    assert len(log) == len(MIXED)
    assert stream(LifelongRouter(path), MIXED) == first
    assert log_of(tmp_path) == log


def test_killed_in_the_middle_it_loses_and_repeats_no_feedback(path: str, tmp_path: Path) -> None:
    stream(LifelongRouter(path), MIXED[:50])
    made = stream(LifelongRouter(path), MIXED)
    kept = [(line["learned"], line["query"], line["side"], line["score"]) for line in log_of(tmp_path)]
    assert [count for count, *_ in kept] == list(range(len(MIXED)))
    os.environ["RESULT_SAVED_URL"] = str(tmp_path / "undisturbed" / "result")
    assert stream(LifelongRouter(path), MIXED) == made


def test_what_was_learned_is_a_router_that_others_load(path: str, tmp_path: Path) -> None:
    router = LifelongRouter(path, save_to=str(tmp_path / "learned"), save_every=10, explore=0.0)
    for index in range(100):
        router.learn(query(row(index, group="g")), "edge", 0.0)
    probe = [query(row(index, group="g")) for index in range(5)] + [query(row(7))]
    saved, goes_on = LearnedRouter(str(tmp_path / "learned")), LifelongRouter(str(tmp_path / "learned"))
    for loaded in (saved, goes_on):
        assert [loaded.score(one) for one in probe] == pytest.approx([router.score(one) for one in probe], abs=1e-9)
    goes_on.learn(probe[0], "edge", 1.0)
    assert goes_on.base.kind == "lengths"
    assert not [name for name in os.listdir(tmp_path / "learned") if name.endswith((".pkl", ".py"))]


def test_what_was_learned_from_is_not_new_to_the_saved_router(path: str, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    LifelongRouter(path, save_to=first, save_every=1).learn(query(row(1)), "edge", 0.0)
    LifelongRouter(first, save_to=second, save_every=1).learn(query(row(2)), "edge", 0.0)
    known = digests([query(row(index)) for index in (1, 2)])
    assert set(TrainedRouter.load(Path(second)).seen.tolist()) == {0, *known.tolist()}


def test_replayed_outcomes_are_no_feedback_and_tell_what_the_models_could_do(path: str, tmp_path: Path) -> None:
    lines = [
        {"query": row(index, group=group, word=word)["query"], "edge": edge, "cloud": 1.0}
        for index in range(40)
        for group, word, edge in (("easy", "easy words", 1.0), ("hard", "others", 0.0))
    ]
    file = tmp_path / "outcomes.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    router = LifelongRouter(path, replay=str(file))
    easy, hard = (router.score(query(row(500, group=group))) for group in ("easy", "hard"))
    assert router.feedback_count == 0
    assert hard > LearnedRouter(path).score(query(row(500))) > easy


def test_one_of_several_workers_is_refused_where_what_is_told_would_be_lost(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IANVS_WORKER", "a node")
    with pytest.raises(UserError, match="without runner: ray"):
        LifelongRouter(path)
