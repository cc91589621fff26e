"""Many streams at once against an API that fails, hangs and truncates: nothing lost, nothing doubled, all explained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Completion, Sampling

from . import faulty_api

STREAMS, QUERIES, DOOMED = 64, 400, 4
SEED = 2
DEADLINE = 120.0


class FaultyProcess:
    """The faulty API, as a process."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(faulty_api.__file__)), str(SEED)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    def tally(self) -> dict[str, Any]:
        """End it; what it did."""
        found: dict[str, Any] = json.loads(self.process.communicate(timeout=60)[0])
        return found


@pytest.fixture
def api() -> Iterator[FaultyProcess]:
    api = FaultyProcess()
    yield api
    api.process.kill()
    api.process.wait()


@pytest.mark.slow
def test_64_streams_against_an_api_that_fails(api: FaultyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.05)
    prompts = [f"question {index}" for index in range(QUERIES)]
    prompts += [f"{faulty_api.DOOMED} {index}" for index in range(DOOMED)]
    # The timeout is what a hanging request costs, and longer than a busy machine pauses in the middle of a stream.
    model = APIBasedLLM("m", api_base_url=api.url, api_timeout=4, api_deadline=DEADLINE, api_concurrency=STREAMS)

    def ask(prompt: str) -> Completion | AnswerError:
        try:
            return model.generate([{"role": "user", "content": prompt}], Sampling())
        except AnswerError as error:
            return error

    with model, ThreadPoolExecutor(STREAMS + 16) as threads:
        outcomes = dict(zip(prompts, threads.map(ask, prompts), strict=True))
    tally = api.tally()

    answers = {prompt: outcome for prompt, outcome in outcomes.items() if isinstance(outcome, Completion)}
    lost = {prompt: outcome for prompt, outcome in outcomes.items() if isinstance(outcome, AnswerError)}
    assert all(prompt.startswith(faulty_api.DOOMED) for prompt in lost)
    assert len(lost) == DOOMED
    assert {prompt: answer.text for prompt, answer in answers.items()} == {
        prompt: faulty_api.answer_to(prompt) for prompt in prompts[:QUERIES]
    }
    assert all(answer.trace.tokens == faulty_api.tokens_of(prompt) for prompt, answer in answers.items())
    assert tally["answered"] == dict.fromkeys(answers, 1), "every answer is given once"

    failures = Counter(kind for answer in answers.values() for _, kind in answer.trace.failures)
    failures += Counter(kind for error in lost.values() for _, kind in error.failures)
    assert failures == tally["faults"]
    assert set(failures) == {kind for kind, _ in faulty_api.FAULTS}, "the seed leaves no kind of fault out"
    assert tally["asked"] == len(answers) + sum(failures.values())
    assert tally["most_in_flight"] <= STREAMS

    latencies = sorted(answer.trace.latency or 0.0 for answer in answers.values())
    assert latencies[int(0.99 * len(latencies))] < DEADLINE
    for answer in answers.values():
        moments = [seconds for seconds, _ in answer.trace.failures]
        assert moments == sorted(moments)
        assert not moments or moments[-1] < answer.trace.chunks[0][0], "times count from the first attempt"
