"""What a long command says of how far it is."""

from __future__ import annotations

import pytest

from ianvs_specdec.commands import progress
from ianvs_specdec.commands.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, to be set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_time_left_count_what_is_new(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress("answers", {"edge": 100})
    # The first that is new loads a model: the clock runs from its end.
    for had, seconds in [(True, 0.0)] * 10 + [(False, 14.0)] + [(False, 10.0)] * 4:
        clock[0] += seconds
        told.step("edge", had)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "edge: 12 of 100 answers, 10 from the journal, 0.1/s, 14:40 left",
        "edge: 14 of 100 answers, 10 from the journal, 0.1/s, 14:20 left",
    ]


def test_each_kind_ends_with_a_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress("answers", {"edge": 2, "cloud": 3000})
    for kind in ("edge", "edge", "cloud", "cloud"):
        told.step(kind)
        clock[0] += 4.0
    told.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["edge: 2 of 2 answers, 0.1/s", "cloud: 2 of 3000 answers, 0.1/s, 6:39:44 left"]
    assert told.done == 4


def test_nothing_is_said_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("answers", {"edge": 2}).close()
    assert capsys.readouterr().err == ""
