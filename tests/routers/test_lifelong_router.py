"""LifelongRouter: what it learns from which feedback, that none is lost, and that a run made again decides alike."""

from __future__ import annotations

import gc
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.errors import UserError
from ianvs_specdec.learned import classifier as kinds
from ianvs_specdec.learned.calibration import Calibration
from ianvs_specdec.learned.classifier import Classifier
from ianvs_specdec.learned.folder import TrainedRouter
from ianvs_specdec.outcomes.recorded import Floats, digests
from ianvs_specdec.plugin import observers
from ianvs_specdec.routers.learned import LearnedRouter
from ianvs_specdec.routers.lifelong import FOLDER, LOG, LifelongRouter
from ianvs_specdec.types import Query


class Lengths(Classifier):
    """Longer questions are harder. A kind for these tests."""

    @classmethod
    def fit(cls, queries: Any, targets: Floats, *, seed: int = 0, **options: Any) -> Lengths:
        return cls()

    def score(self, queries: Any) -> Floats:
        return np.array([min(len(query.turns[0]) / 100, 0.99) for query in queries])

    def save(self, folder: Path) -> None:
        (folder / "lengths.txt").write_text("", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Lengths:
        return cls()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(kinds.CLASSIFIERS, "lengths", f"{__name__}:Lengths")
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "job" / "result"))
    monkeypatch.delenv("IANVS_FRESH", raising=False)
    TrainedRouter("lengths", Lengths(), Calibration(), 0.5, np.zeros(1, np.uint64)).save(tmp_path / "base")
    return str(tmp_path / "base")


def row(index: int, group: str = "", word: str = "rivers") -> dict[str, Any]:
    text = f"Which of the {word} number {index} is it?"
    return {"query": {"turns": [text], "id": f"q{index}", "group": group, "scorer": "choice"}, "gold": "A"}


def query(data: dict[str, Any]) -> Query:
    return Query(tuple(data["query"]["turns"]), data["query"]["id"], data["query"]["group"], "choice")


def give(side: str, data: dict[str, Any], right: bool) -> None:
    """A model answers."""
    observers.ended(side, data, {"turns": [{"completion": "A" if right else "B"}]})


def log_of(tmp_path: Path) -> list[dict[str, Any]]:
    (found,) = (tmp_path / "job" / FOLDER).glob(f"*/{LOG}")
    return [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]


def stream(router: LifelongRouter, rows: list[dict[str, Any]]) -> list[tuple[float, bool]]:
    """Route each row and answer it: the edge knows nothing of minerals, the cloud everything."""
    made = []
    for data in rows:
        hard = router(data)
        made.append((data["routing"]["score"], hard))
        give("cloud" if hard else "edge", data, hard or "minerals" not in data["query"]["turns"][0])
    return made


MIXED = [row(index, word=("rivers", "minerals")[index % 2]) for index in range(120)]


def test_without_feedback_it_is_the_trained_router(path: str) -> None:
    frozen, router = LearnedRouter(path), LifelongRouter(path, explore=0.0)
    for data in MIXED:
        assert router.score(query(data)) == pytest.approx(frozen.score(query(data)), abs=1e-12)
        assert router(dict(data)) == frozen(dict(data))


def test_what_the_edge_fails_at_goes_to_the_cloud_and_nothing_else_does(path: str) -> None:
    router = LifelongRouter(path)
    stream(router, MIXED)
    after = [router.score(query(row(index, word=word))) for word in ("rivers", "minerals") for index in range(200, 230)]
    assert max(after[:30]) < 0.5 < min(after[30:])


def test_groups_are_learned_where_texts_say_nothing(path: str) -> None:
    router = LifelongRouter(path, explore=0.0)
    for index in range(60):
        router.learn(query(row(index, group=("a", "b")[index % 2])), "edge", float(index % 2))
        router.learn(query(row(index, group=("a", "b")[index % 2])), "cloud", 1.0)
    failing, fine, unknown = (router.score(query(row(500, group=group))) for group in ("a", "b", "c"))
    assert failing > unknown > fine
    assert failing - fine > 0.3


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
    for index in range(400):
        router.learn(query(row(index, group="g")), "edge", float(index < 300))
        router.learn(query(row(index, group="g")), "cloud", 1.0)
    assert router.score(query(row(999, group="g"))) > 0.5


def test_an_answer_without_gold_error_or_turn_teaches_nothing(path: str) -> None:
    router = LifelongRouter(path)
    observers.ended("edge", "a bare question", {"turns": [{"completion": "A"}]})
    observers.ended("edge", row(1), None)
    observers.ended("edge", row(1), {"turns": [], "error": "no answer"})
    assert router.feedbacks == 0


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


def test_a_file_that_grows_is_learned_where_it_grew_also_when_the_run_is_made_again(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "thumbs.jsonl"
    file.write_text('{"query_id": "q3", "side": "edge", "thumb": "down"}\nnonsense\n[1]\n', encoding="utf-8")
    router = LifelongRouter(path, feedback=str(file), explore=0.0)
    first = stream(router, MIXED[:40])
    assert router.feedbacks == 1
    assert sum("a line is ignored" in message for message in caplog.messages) == 1
    with file.open("a", encoding="utf-8") as more:
        for index in range(0, 40, 2):
            more.write(json.dumps({"query": MIXED[index]["query"]["turns"][0], "side": "edge", "score": 0.0}) + "\n")
        more.write('{"query_id": "q39", "side": "ed')
    first += stream(router, MIXED[40:80])
    assert router.feedbacks == 21
    assert first[-1][0] != LearnedRouter(path).score(query(MIXED[79]))
    again = LifelongRouter(path, feedback=str(file), explore=0.0)
    assert stream(again, MIXED[:80]) == first
    assert len(log_of(tmp_path)) == again.feedbacks == 21


def test_feedback_is_learned_once_in_each_run_in_whatever_order_answers_come(path: str, tmp_path: Path) -> None:
    file = tmp_path / "thumbs.jsonl"
    thumbs = [{"query_id": f"q{index}", "side": "edge", "thumb": "up"} for index in range(6)]
    file.write_text("".join(json.dumps(thumb) + "\n" for thumb in thumbs), encoding="utf-8")
    for order in ((0, 1, 2, 3, 4, 5), (1, 0, 3, 2, 5, 4), (0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0)):
        router = LifelongRouter(path, feedback=str(file))
        for index in order:
            give("edge", row(index), right=True)
        assert router.feedbacks == 6
    assert len(log_of(tmp_path)) == 6
    # An answer that is not given in this run holds up no feedback on others.
    router = LifelongRouter(path, feedback=str(file))
    for index in range(6):
        give("cloud" if index == 0 else "edge", row(index), right=True)
    assert router.feedbacks == 5


def test_two_routers_of_one_run_keep_what_each_has_received(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IANVS_RUN_ID", "run")
    for name in ("q1", "q2"):
        router = LifelongRouter(path, feedback={"port": 0})
        assert post(str(router.url), json.dumps({"query_id": name, "side": "edge", "thumb": "up"}).encode()) == 202
        del router
    again = LifelongRouter(path, feedback={"port": 0})
    for index in range(4):
        give("edge", row(index), right=True)
    assert again.feedbacks == 2


def test_feedback_on_another_models_answers_is_not_learned(path: str) -> None:
    for number, (model, learned) in enumerate((("small", 1), ("other", 0), ("small", 1))):
        router = LifelongRouter(path, feedback={"port": 0})
        observers.ended("edge", row(1), {"turns": [{"completion": "A"}], "model": model})
        if number == 0:
            assert post(str(router.url), b'{"query_id": "q1", "side": "edge", "thumb": "up"}') == 202
        observers.ended("edge", row(2), {"turns": [{"completion": "A"}], "model": model})
        assert router.feedbacks == learned


def test_a_log_whose_last_line_is_torn_loses_that_line_alone(path: str, tmp_path: Path) -> None:
    stream(LifelongRouter(path), MIXED[:20])
    (found,) = (tmp_path / "job" / FOLDER).glob(f"*/{LOG}")
    found.write_bytes(found.read_bytes()[:-9])
    stream(LifelongRouter(path), MIXED[:20])
    lines = found.read_text(encoding="utf-8").splitlines()
    assert sum(line.endswith("}") for line in lines) == 20


def post(url: str, body: bytes, **headers: str) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_thumbs_are_taken_at_an_endpoint_and_kept_until_they_are_learned(path: str, tmp_path: Path) -> None:
    router = LifelongRouter(path, feedback={"port": 0})
    assert router.url is not None
    assert router.url.startswith("http://127.0.0.1:")
    assert post(router.url, b'{"query_id": "q2", "side": "edge", "thumb": "down"}') == 202
    assert router.feedbacks == 0
    assert [line["query"] for line in log_of(tmp_path)] == ["q2"]
    # Killed before the answer came: the next one learns it.
    again = LifelongRouter(path, feedback={"port": 0})
    give("edge", row(2), right=True)
    assert again.feedbacks == 1
    assert "learned" in log_of(tmp_path)[-1]


def test_the_endpoint_refuses_what_it_should(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUMBS", "secret")
    router = LifelongRouter(path, feedback={"port": 0, "token_env": "THUMBS"})
    url = str(router.url)
    good = b'{"query_id": "q2", "side": "edge", "score": 1}'
    bearer = {"Authorization": "Bearer secret"}
    assert post(url, good) == post(url, good, Authorization="Bearer wrong") == 401
    assert post(url, good, **bearer) == 202
    assert post(url, b"{}", **bearer) == post(url, b"\xff", **bearer) == post(url, b"[" * 50_000, **bearer) == 400
    assert post(url, b" " * 70_000, **bearer) == 413
    for length, status in (("9" * 5000, 413), ("\u00b2", 411), ("-1", 411)):
        assert post(url, good, **bearer, **{"Content-Length": length}) == status
    assert post(url.replace("feedback", "other"), good, **bearer) == 404
    assert post(url, good, **{**bearer, "Content-Type": "text/plain"}) == 415


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
    for folder, learned in ((first, [1]), (second, [1, 2])):
        seen = TrainedRouter.load(Path(folder)).seen
        known = set(digests([query(row(index)) for index in learned]).tolist())
        assert set(seen.tolist()) == known | {0}


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
    assert router.feedbacks == 0
    assert hard > LearnedRouter(path).score(query(row(500))) > easy


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"path": "nowhere"}, "path"),
        ({"feedback": {"prt": 1}}, "feedback"),
        ({"feedback": {"port": -1}}, "feedback"),
        ({"feedback": 3}, "feedback"),
        ({"explore": 0.9}, "explore"),
        ({"save_every": 0}, "save_every"),
        ({"replay": "missing.jsonl"}, "replay"),
        ({"save_to": "."}, "save_to"),
    ],
)
def test_settings_that_cannot_work_name_their_key(path: str, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as told:
        LifelongRouter.check_hyperparameters({"path": path, **wrong})
    assert told.value.key == key


def test_one_of_several_workers_is_refused_where_what_is_told_would_be_lost(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IANVS_WORKER", "a node")
    with pytest.raises(UserError, match="without runner: ray"):
        LifelongRouter(path)


def test_the_port_is_free_when_the_router_has_gone(path: str) -> None:
    router: LifelongRouter | None = LifelongRouter(path, feedback={"port": 0})
    assert router is not None
    assert router.url is not None
    port = int(router.url.split(":")[2].split("/")[0])
    with pytest.raises(UserError, match=str(port)):
        LifelongRouter(path, feedback={"port": port})
    router = None
    gc.collect()
    assert LifelongRouter(path, feedback={"port": port}).url is not None


def test_a_token_that_is_not_set_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THUMBS", raising=False)
    with pytest.raises(UserError, match="THUMBS"):
        LifelongRouter(path, feedback={"port": 0, "token_env": "THUMBS"})
