"""The lifelong router's feedback: from a file that grows and at an endpoint, none lost and none learned twice."""

from __future__ import annotations

import gc
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin import observers
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from tests.routing.routers.lifelong_stream import MIXED, give, log_of, query, row, stream


def post(url: str, body: bytes, **headers: str) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_file_that_grows_is_learned_where_it_grew_also_when_the_run_is_made_again(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "thumbs.jsonl"
    file.write_text('{"query_id": "q3", "side": "edge", "thumb": "down"}\nnonsense\n[1]\n', encoding="utf-8")
    router = LifelongRouter(path, feedback=str(file), explore=0.0)
    first = stream(router, MIXED[:40])
    assert router.feedback_count == 1
    assert sum("a line is ignored" in message for message in caplog.messages) == 1
    with file.open("a", encoding="utf-8") as more:
        for index in range(0, 40, 2):
            more.write(json.dumps({"query": MIXED[index]["query"]["turns"][0], "side": "edge", "score": 0.0}) + "\n")
        more.write('{"query_id": "q39", "side": "ed')
    first += stream(router, MIXED[40:80])
    assert router.feedback_count == 21
    assert first[-1][0] != LearnedRouter(path).score(query(MIXED[79]))
    again = LifelongRouter(path, feedback=str(file), explore=0.0)
    assert stream(again, MIXED[:80]) == first
    assert len(log_of(tmp_path)) == again.feedback_count == 21


def test_feedback_is_learned_once_in_each_run_in_whatever_order_answers_come(path: str, tmp_path: Path) -> None:
    file = tmp_path / "thumbs.jsonl"
    thumbs = [{"query_id": f"q{index}", "side": "edge", "thumb": "up"} for index in range(6)]
    file.write_text("".join(json.dumps(thumb) + "\n" for thumb in thumbs), encoding="utf-8")
    for order in ((0, 1, 2, 3, 4, 5), (1, 0, 3, 2, 5, 4), (0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0)):
        router = LifelongRouter(path, feedback=str(file))
        for index in order:
            give("edge", row(index), right=True)
        assert router.feedback_count == 6
    assert len(log_of(tmp_path)) == 6
    # An answer that is not given in this run holds up no feedback on others.
    router = LifelongRouter(path, feedback=str(file))
    for index in range(6):
        give("cloud" if index == 0 else "edge", row(index), right=True)
    assert router.feedback_count == 5


def test_two_routers_of_one_run_keep_what_each_has_received(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IANVS_RUN_ID", "run")
    for name in ("q1", "q2"):
        router = LifelongRouter(path, feedback={"port": 0})
        assert post(str(router.url), json.dumps({"query_id": name, "side": "edge", "thumb": "up"}).encode()) == 202
        del router
    again = LifelongRouter(path, feedback={"port": 0})
    for index in range(4):
        give("edge", row(index), right=True)
    assert again.feedback_count == 2


def test_feedback_on_another_models_answers_is_not_learned(path: str) -> None:
    for number, (model, learned) in enumerate((("small", 1), ("other", 0), ("small", 1))):
        router = LifelongRouter(path, feedback={"port": 0})
        observers.ended("edge", row(1), {"turns": [{"completion": "A"}], "model": model})
        if number == 0:
            assert post(str(router.url), b'{"query_id": "q1", "side": "edge", "thumb": "up"}') == 202
        observers.ended("edge", row(2), {"turns": [{"completion": "A"}], "model": model})
        assert router.feedback_count == learned


def test_thumbs_are_taken_at_an_endpoint_and_kept_until_they_are_learned(path: str, tmp_path: Path) -> None:
    router = LifelongRouter(path, feedback={"port": 0})
    assert router.url is not None
    assert router.url.startswith("http://127.0.0.1:")
    assert post(router.url, b'{"query_id": "q2", "side": "edge", "thumb": "down"}') == 202
    assert router.feedback_count == 0
    assert [line["query"] for line in log_of(tmp_path)] == ["q2"]
    # Killed before the answer came: the next one learns it.
    again = LifelongRouter(path, feedback={"port": 0})
    give("edge", row(2), right=True)
    assert again.feedback_count == 1
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
    for length, status in (("9" * 5000, 413), ("-1", 411)):
        assert post(url, good, **bearer, **{"Content-Length": length}) == status
    assert post(url.replace("feedback", "other"), good, **bearer) == 404
    assert post(url, good, **{**bearer, "Content-Type": "text/plain"}) == 415


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
