"""One loaded model of ours and many threads: answers are those of one at a time, who leaves is let go of, and nobody
waits for what never comes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.common.errors import AnswerError, RequestCancelledError, UserError
from ianvs_specdec.common.types import Completion, Hints, Occupancy, Sampling
from ianvs_specdec.engine import loop
from tests.support.models import build_model

LONGEST = 60.0
"""Seconds after which a test gives up."""
SAMPLINGS = (
    Sampling(max_tokens=24),
    Sampling(max_tokens=24, temperature=0.9, top_p=0.9, seed=3),
    Sampling(max_tokens=24, temperature=0.9, seed=4, stop=("Z", "q"), logprobs=True),
    Sampling(max_tokens=7, repetition_penalty=1.3, logprobs=True),
)
QUESTIONS = tuple(
    (f"question {number} " * (1 + number % 3), SAMPLINGS[number % len(SAMPLINGS)]) for number in range(16)
)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def content(completion: Completion) -> tuple[Any, ...]:
    """What of an answer does not depend on the time."""
    confidence = [tuple(round(figure, 4) for figure in token) for token in completion.trace.confidence or ()]
    return completion.token_ids, completion.text, completion.finish_reason, confidence, completion.trace.characters


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers to it take far longer than any test."""
    return build_model(tmp_path_factory.mktemp("long") / "model", window=1 << 30)


FOR_EVER = Sampling(max_tokens=1_000_000, stop=())


class Pool:
    """Requests in threads of their own."""

    def __init__(self, model: Path, method: str = "autoregressive", **options: Any) -> None:
        self.llm = backend(method)(str(model), **options)
        self.llm.load()
        self._threads = ThreadPoolExecutor(32)

    def ask(
        self, text: str, sampling: Sampling, cancelled: Callable[[], bool] | None = None, on_chunk: Any = None
    ) -> Future[Completion]:
        return self._threads.submit(self.llm.generate, chat(text), sampling, on_chunk, Hints(cancelled=cancelled))

    def begun(self) -> tuple[Future[Completion], threading.Event]:
        """A request without end that has begun to answer, and what ends it."""
        first, leaves = threading.Event(), threading.Event()
        asked = self.ask("go on", FOR_EVER, leaves.is_set, lambda *_: first.set())
        assert first.wait(LONGEST)
        return asked, leaves

    def has_room_for(self, endless: float) -> None:
        """Of memory, for so many requests without end."""
        self.llm._batcher._engine._memory = endless * self.llm._target.memory(FOR_EVER.max_tokens)

    def wait_for(self, ready: Callable[[Occupancy], bool]) -> None:
        patience = threading.Event()
        for _ in range(int(LONGEST / 0.005)):
            if ready(self.llm.occupancy()):
                return
            patience.wait(0.005)
        raise AssertionError(self.llm.occupancy())

    def end(self) -> None:
        self.llm.close()
        self._threads.shutdown()


@pytest.fixture
def pool() -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def build(*arguments: Any, **options: Any) -> Pool:
        pools.append(Pool(*arguments, **options))
        return pools[-1]

    yield build
    for one in pools:
        one.end()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("autoregressive", {}),
        ("RecyclingSpecDec", {"acceptance": "coupled"}),
    ],
)
def test_answers_are_those_of_one_at_a_time(tiny_model: Path, pool: Any, method: str, options: dict[str, Any]) -> None:
    asked = pool(tiny_model, method, **options)
    alone = [asked.ask(*question).result(LONGEST) for question in QUESTIONS]
    together = [answer.result(LONGEST) for answer in [asked.ask(*question) for question in QUESTIONS]]
    assert [content(answer) for answer in together] == [content(answer) for answer in alone]
    asked.wait_for(lambda now: now == Occupancy(0, 0, 0))


def test_who_leaves_is_let_go_of_and_the_others_go_on(long_model: Path, pool: Any) -> None:
    asked = pool(long_model)
    staying, stays = asked.begun()
    leaving, leaves = asked.begun()
    assert asked.llm.occupancy().sequences == 2
    leaves.set()
    with pytest.raises(RequestCancelledError):
        leaving.result(LONGEST)
    asked.wait_for(lambda now: now.sequences == 1)
    assert not staying.done()
    stays.set()
    asked.wait_for(lambda now: now == Occupancy(0, 0, 0))


def test_who_waits_for_room_leaves_as_well(long_model: Path, pool: Any) -> None:
    asked = pool(long_model)
    asked.has_room_for(1.5)
    running, ends = asked.begun()
    leaves = threading.Event()
    waiting, behind = asked.ask("x", FOR_EVER, leaves.is_set), asked.ask("y", FOR_EVER)
    asked.wait_for(lambda now: (now.sequences, now.waiting) == (1, 2))
    leaves.set()
    with pytest.raises(RequestCancelledError):
        waiting.result(LONGEST)
    asked.wait_for(lambda now: (now.sequences, now.waiting) == (1, 1))
    assert not running.done()
    ends.set()
    asked.wait_for(lambda now: (now.sequences, now.waiting) == (1, 0))
    assert not behind.done()


@pytest.mark.slow
def test_closing_ends_what_is_under_way_and_gives_the_memory_back(long_model: Path, pool: Any) -> None:
    asked = pool(long_model)
    held = weakref.ref(asked.llm._target)
    running = [asked.begun()[0] for _ in range(3)]
    asked.llm.close()
    for answer in running:
        with pytest.raises(UserError, match="the model was closed") as caught:
            answer.result(LONGEST)
        assert not isinstance(caught.value, AnswerError), "no failure of this one question"
        del caught
    del running, answer
    gc.collect()
    assert held() is None
    assert asked.ask("again", Sampling(max_tokens=2)).result(LONGEST).completion_tokens == 2, "it can be loaded again"


def test_when_the_engine_ends_everybody_is_told(
    long_model: Path, pool: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Those, too, whose end the step that failed had seen and could not tell."""
    asked = pool(long_model)
    running = [asked.begun() for _ in range(3)]
    leave = loop.Engine._leave

    def fail(engine: loop.Engine) -> Any:
        if leave(engine):
            raise ZeroDivisionError("a fault")
        return []

    monkeypatch.setattr(loop.Engine, "_leave", fail)
    running[0][1].set()
    with pytest.raises(RequestCancelledError):
        running[0][0].result(LONGEST)
    raised = list[BaseException | None]()
    for answer in [*(answer for answer, _ in running[1:]), *(asked.ask("hello", Sampling(max_tokens=2)) for _ in "ab")]:
        with pytest.raises(RuntimeError, match="the engine ended: ZeroDivisionError: a fault"):
            answer.result(LONGEST)
        raised.append(answer.exception())
    # Threads that raise the same one would add to each other's traceback.
    assert len({id(error) for error in raised}) == len(raised) > 2
    assert "a fault" in caplog.text


def test_a_model_is_loaded_once_for_all_who_ask(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = backend("autoregressive")(str(tiny_model))
    loads: list[int] = []
    load = type(llm)._load
    monkeypatch.setattr(type(llm), "_load", lambda self: (loads.append(1), load(self)))
    with llm, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: llm.generate(chat("x"), Sampling(max_tokens=2)), range(4)))
    assert len(loads) == 1


@pytest.mark.slow
def test_a_process_that_ends_while_the_engine_computes_ends_well(long_model: Path) -> None:
    program = f"""
import threading
threading.excepthook = lambda thrown: print(thrown.exc_value)
from ianvs_specdec.backends import backend
from ianvs_specdec.common.types import Sampling
begun, llm = threading.Event(), backend("autoregressive")({str(long_model)!r})
question = [{{"role": "user", "content": "go on"}}], Sampling(max_tokens=1_000_000), lambda *_: begun.set()
threading.Thread(target=llm.generate, args=question, daemon=True).start()
assert begun.wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() in ("", "the model was closed"), (
        "which the thread may live to see, the line not its end"
    )
