"""Feedback that waits for its answer."""

from __future__ import annotations

import sys
from collections import OrderedDict

import pytest

from ianvs_specdec.routing.lifelong import lessons
from ianvs_specdec.routing.lifelong.feedback import Feedback
from ianvs_specdec.routing.lifelong.pending import PendingFeedback


def test_the_newest_wait_and_each_is_taken_once() -> None:
    pending = PendingFeedback(3)
    for number, query in enumerate("abaca"):
        pending.add(Feedback(query, "edge", 0.0, str(number)))
    assert len(pending) == 3
    assert pending.displaced == 2
    assert [item.source for item in pending.take("a", "edge")] == ["2", "4"]
    assert pending.take("a", "edge") == pending.take("b", "edge") == pending.take("c", "cloud") == []
    assert [item.source for item in pending.take("c", "edge")] == ["3"]
    pending.add(Feedback("a", "edge", 0.0, "5"))
    assert [item.source for item in pending.take("a", "edge")] == ["5"]
    assert len(pending) == 0


def steps(count: int) -> int:
    """How many lines of Python so many feedbacks on one unknown query take: no clock decides."""
    pending, lines = PendingFeedback(count // 2), 0

    def count_lines(*_: object) -> object:
        nonlocal lines
        lines += 1
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)  # type: ignore[arg-type]
    try:
        for number in range(count):
            pending.add(Feedback("unknown", "edge", 0.0, str(number)))
        assert len(pending.take("unknown", "edge")) == count // 2
    finally:
        sys.settrace(before)
    return lines


def test_many_on_one_unknown_query_take_linear_time() -> None:
    assert steps(800) < 5 * steps(200)


def test_an_answer_that_is_given_again_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "REMEMBERED", 2)
    given: OrderedDict[str, int] = OrderedDict()
    for number, name in enumerate("abac"):
        lessons._remember(given, name, number)
    assert given == {"a": 2, "c": 3}
