"""``bench.soak``: incomplete answers, and counts compared with a server's."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from bench import soak

WHOLE = {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


class Response:
    def __init__(self, body: str, status: int = 200) -> None:
        self.status, self._body = status, body

    def read(self) -> bytes:
        return self._body.encode()


def received(body: str, status: int = 200, streamed: bool = False) -> str:
    response: Any = Response(body, status)
    return soak._received(response, streamed)


def events(*chunks: Any, end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


def test_complete_answers_and_refusals() -> None:
    last, usage = {"choices": WHOLE["choices"]}, {"choices": [], "usage": WHOLE["usage"]}
    assert received(json.dumps(WHOLE)) == "answered"
    assert received(events(last, usage), streamed=True) == "answered"
    assert received("", 429) == "queue full"


@pytest.mark.parametrize(
    ("body", "status", "streamed"),
    [
        ("{}", 500, False),
        (json.dumps({**WHOLE, "choices": [{"finish_reason": None}]}), 200, False),
        (json.dumps({**WHOLE, "usage": {"completion_tokens": 0}}), 200, False),
        (events({"choices": WHOLE["choices"]}, end=""), 200, True),
    ],
)
def test_incomplete_answers_are_lost(body: str, status: int, streamed: bool) -> None:
    with pytest.raises((ValueError, LookupError)):
        received(body, status, streamed)


@pytest.mark.parametrize(
    ("completed", "refused", "disconnected", "right"),
    [(11, 4, 2, True), (10, 6, 1, True), (9, 4, 4, False), (10, 4, 2, False)],
)
def test_disconnected_clients_may_have_been_answered(
    completed: int, refused: int, disconnected: int, right: bool
) -> None:
    outcomes = {"completed": completed, "queue_full": refused, "disconnected": disconnected}
    metrics = {f"requests_total.{name}": float(number) for name, number in outcomes.items()}
    counts = collections.Counter({"answered": 10, "queue full": 4, "left": 3})
    assert (soak._miscounted(metrics, counts) == []) == right


@pytest.mark.slow
def test_a_short_run_with_a_real_server(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--minutes", "0.05", "--at-once", "6", "--tokens", "12", "--", "--model", str(tiny_model)]
    soak.main([*arguments, "--set", "truncate_prompts=true"])
    *_, counted, verdict = capsys.readouterr().out.splitlines()
    assert ", 0 queue full, 0 lost, " in counted
    assert not counted.startswith("in all  0 answered")
    # Three seconds are too short to judge the memory.
    assert verdict.startswith(("nothing lost", "the memory grew"))
