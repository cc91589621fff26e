"""Requests that are under way together: what each one's share of the time is, and that it is kept with the answer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion, Trace
from ianvs_specdec.plugin.models import CloudModel
from ianvs_specdec.plugin.timings import Overlap, UnderWay, stamp
from tests.support import journals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_shares_add_up_to_the_time_in_which_there_was_work(clock: list[float]) -> None:
    overlap = Overlap()
    first = overlap.begin()
    clock[0] += 1.0
    second = overlap.begin()
    clock[0] += 2.0
    assert overlap.end(first) == pytest.approx((3.0, 1.0 + 2.0 / 2))
    clock[0] += 3.0
    assert overlap.end(second) == pytest.approx((5.0, 2.0 / 2 + 3.0))
    clock[0] += 10.0
    third = overlap.begin()
    clock[0] += 1.0
    assert overlap.end(third) == pytest.approx((1.0, 1.0))


class Together(LLM):
    """Answers when ``number`` requests are there; each takes a second of the clock."""

    backend, local, concurrent = "api", False, True

    def __init__(self, clock: list[float], number: int) -> None:
        super().__init__("together")
        self._barrier = threading.Barrier(number, action=lambda: clock.__setitem__(0, clock[0] + 1.0))

    @classmethod
    def load(self) -> None: ...

    def identity(self, digests: Any) -> dict[str, Any]:
        return {"backend": "together"}

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        self._barrier.wait(60)
        # Nobody ends before all have begun to end: the clock stands still meanwhile.
        return Completion("x", [], 1, 3, "stop", Trace([(1.0, 3)]))


@pytest.mark.parametrize(("answered", "told"), [(1.5, 3.5), (None, None)])
def test_the_wait_for_others_is_before_every_time_of_an_answer(answered: float | None, told: float | None) -> None:
    trace = Trace([(1.0, 1), (1.5, 1)], thinking=1, answered=answered)
    stamp(trace, Together([], 1), issued=0.0, waited=2.0, under_way=UnderWay(3.5, 2.0))
    assert trace.chunks == [(3.0, 1), (3.5, 1)]
    assert trace.answered == told


@pytest.mark.parametrize(("number", "share"), [(1, None), (4, 0.25)])
def test_an_answer_keeps_its_share_where_it_was_not_alone(
    job: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch, number: int, share: float | None
) -> None:
    model = CloudModel(model="together", backend="api", api_base_url="http://127.0.0.1:1/v1")
    llm = Together(clock, number)
    monkeypatch.setattr(type(model.settings), "llm", lambda self, name: llm)
    with ThreadPoolExecutor(number) as pool:
        responses = list(pool.map(lambda n: model.inference(f"q{n}"), range(number)))
    assert [response["turns"][0]["trace"].get("busy") for response in responses] == [share] * number
    assert ('"busy"' in journals.text(job)) == (share is not None)
