"""Feedback files and the feedback log with invalid values and a full disk."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.lifelong.feedback import Feedback, FeedbackFile, FeedbackLog

ANYTHING = [None, True, 0, -1, 7, 0.5, 1e308, float("nan"), float("inf"), 10**400, "", "up", "edge", "\ud800"]
ANYTHING += [[], ["up"], [[]], {}, {"turns": []}, {"turns": [[]]}, {"up": 1}]
GOOD = {"query_id": "q", "query": "which?", "side": "edge", "score": 1, "thumb": "up"}


def check(feedback: Feedback) -> None:
    assert isinstance(feedback.query, str)
    assert feedback.side in ("edge", "cloud")
    assert 0 <= feedback.score <= 1


@pytest.mark.parametrize("field", GOOD)
def test_feedback_of_any_type_is_accepted_or_refused(tmp_path: Path, field: str) -> None:
    hidden = {"thumb": "score", "query": "query_id"}.get(field)
    for number, value in enumerate(ANYTHING):
        record = {name: given for name, given in {**GOOD, field: value}.items() if name != hidden}
        with suppress(UserError):
            check(Feedback.parse(record, "here"))
        if value != 10**400:
            file = FeedbackFile(tmp_path / f"{number}.jsonl")
            file.path.write_text(json.dumps(record) + "\n" + json.dumps(GOOD) + "\n")
            assert len(list(file.new())) == 2 - file.damaged


KEPT = {"source": "run:1", "query": "q", "side": "edge", "score": 1.0, "model": "m", "run": "run"}
LEARNED = {"learned": 0, "answers": 1, "source": "run:2", "query": "q", "side": "edge", "score": 1.0, "run": "run"}


@pytest.mark.parametrize("line", [KEPT, LEARNED], ids=["received", "learned"])
def test_a_log_with_fields_of_any_type_is_read(
    tmp_path: Path, line: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "feedback.jsonl"
    for value in ANYTHING:
        broken = [{**line, field: value} for field in line]
        lines = [json.dumps(record) for record in [*broken, value, KEPT]]
        path.write_text("\n".join([*lines, "[" * 100_000, ""]))
        log = FeedbackLog(path, "another")
        assert log.waiting["run:1"] == Feedback("q", "edge", 1.0, "run:1", "m")
        for feedback in (*log.waiting.values(), *log.earlier):
            check(feedback)
        del log
    assert sum("damaged line" in message for message in caplog.messages) == len(ANYTHING)


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_accepted_feedback_survives_a_full_disk(tmp_path: Path) -> None:
    from tests.support.full_disk import files_end_at

    path = tmp_path / "feedback.jsonl"
    log = FeedbackLog(path, "run")
    log.received(Feedback("q1", "edge", 1.0, "run:1"))
    size = path.stat().st_size
    with files_end_at(size + 20), pytest.raises(UserError, match=r"feedback cannot be stored in .*feedback\.jsonl"):
        log.received(Feedback("q2", "edge", 1.0, "run:2"))
    assert path.stat().st_size == size
    log.received(Feedback("q3", "edge", 0.0, "run:3"))
    del log
    assert [feedback.query for feedback in FeedbackLog(path, "next").waiting.values()] == ["q1", "q3"]
