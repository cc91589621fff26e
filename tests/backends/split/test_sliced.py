"""Back end ``SlicedSpecDec``: lossless with any cut and after broken streams."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.backends.split import verifier as verifier_module
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.net.link.link import Link
from ianvs_specdec.net.split.split_pb2 import BUSY
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.serving.verifier.service import Limits
from ianvs_specdec.serving.verifier.slices import SliceSession
from ianvs_specdec.targets.native.target import NativeTarget
from tests.support.models import build_model
from tests.support.verifiers import PATIENCE, Breaking, Verifier, loaded, verifying

LAYERS, HIDDEN = 4, 32
GREEDY, DRAWN = Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=0.8, seed=5)
CHATS = [[{"role": "user", "content": f"ab ab ab {n} ab {'cd ' * 20 * n}"}] for n in range(4)]
LOOKUP = {"method": "prompt_lookup", "length": "fixed:4"}


class ThreadLink:
    """``specdec link --listen 127.0.0.1:0 --to HOST:PORT`` in a thread instead of a process."""

    pid = 0

    def __init__(self, arguments: list[str]) -> None:
        self._link = Link(to=arguments[arguments.index("--to") + 1])
        self._link.__enter__()
        self.address = self._link.address

    def ask(self) -> Any:
        return self._link.summary()

    def check(self) -> None:
        """A thread does not end."""

    def close(self) -> None:
        self._link.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def link_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "ServerProcess", ThreadLink)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("sliced") / "target", layers=LAYERS)


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[Verifier]:
    llm = loaded(folder)
    with verifying(llm) as running:
        yield running
    llm.close()


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[Any]:
    with backend("autoregressive")(str(folder), threads=1, device="cpu", acceptance="coupled") as llm:
        yield llm


@contextmanager
def sliced(folder: Path, verifier: Verifier | Breaking, **options: Any) -> Iterator[Any]:
    given = {"cut": 2, "threads": 1, "device": "cpu", "acceptance": "coupled", "verifier": verifier.address, **options}
    with backend("SlicedSpecDec")(str(folder), **given) as llm:
        yield llm


def ids(answers: list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize(("cut", "edge"), [(1, None), (1, LOOKUP), (2, LOOKUP), (3, None), (3, LOOKUP)])
def test_every_cut_is_lossless(
    cut: int, edge: dict[str, Any] | None, folder: Path, verifier: Verifier, whole: Any
) -> None:
    with sliced(folder, verifier, cut=cut, edge=edge) as llm:
        for sampling in (GREEDY, DRAWN):
            for chat in CHATS[:2]:
                answer = llm.generate(chat, sampling)
                assert answer.token_ids == whole.generate(chat, sampling).token_ids
                assert answer.trace.split.rounds == len(answer.trace.steps)


def test_concurrent_answers_with_draft_trees_are_lossless(folder: Path, verifier: Verifier, whole: Any) -> None:
    edge = {"method": "draft_model", "draft": str(folder), "branches": 2, "length": "fixed:6"}
    asked = [(chat, sampling) for chat in CHATS for sampling in (GREEDY, DRAWN)]
    with sliced(folder, verifier, edge=edge) as llm, ThreadPoolExecutor(len(asked)) as pool:
        llm.load()
        answers = list(pool.map(lambda one: llm.generate(*one), asked))
        assert ids(answers) == [whole.generate(*one).token_ids for one in asked]
        steps = [step for answer in answers for step in answer.trace.steps]
        assert max(step.drafted for step in steps) == 6
        assert max(step.accepted for step in steps) > 1


def test_broken_streams_do_not_change_answers(folder: Path, verifier: Verifier, whole: Any) -> None:
    with contextlib.closing(Breaking(verifier.port)) as way, sliced(folder, way, edge=LOOKUP) as llm:
        llm.load()
        asked = [(chat, sampling) for chat in CHATS for sampling in (GREEDY, DRAWN)]
        way.cut_after(300, 500, 700)
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: llm.generate(*one), asked))
        assert ids(answers) == [whole.generate(*one).token_ids for one in asked]
        assert sum(answer.trace.split.breaks for answer in answers) >= 3


def test_a_restarted_verifier_continues_the_answer(folder: Path, whole: Any) -> None:
    llm = loaded(folder)
    first, others = Verifier(llm), []

    def replace(text: str, tokens: int) -> None:
        if not others:
            first.stop()
            others.append(Verifier(llm, port=first.port))

    with sliced(folder, first) as edge:
        answer = edge.generate(CHATS[0], GREEDY, replace)
    assert answer.token_ids == whole.generate(CHATS[0], GREEDY).token_ids
    assert answer.trace.split.breaks == 1
    assert answer.trace.split.lost > 0
    others[0].stop()
    llm.close()


def test_texts_are_continued_and_checked_like_chats(folder: Path, verifier: Verifier, whole: Any) -> None:
    with sliced(folder, verifier) as llm:
        answer = llm.generate("ab ab ab", GREEDY)
        assert answer.token_ids == whole.generate("ab ab ab", GREEDY).token_ids
        with pytest.raises(UserError, match="min_tokens"):
            llm.generate("ab ab ab", Sampling(max_tokens=8, min_tokens=4))


def test_link_options_reach_a_process_that_close_ends(
    folder: Path, verifier: Verifier, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier_module, "ServerProcess", ServerProcess)
    few = Sampling(max_tokens=4, ignore_eos=True)
    with sliced(folder, verifier, link={"delay": "100ms", "on_outage": "cut"}) as llm:
        llm.load()
        (link,) = llm.processes
        os.kill(link, 0)
        started = time.monotonic()
        answer = llm.generate(CHATS[0], few)
        # Each round waits for one trip up and one down.
        assert time.monotonic() - started > 0.2 * answer.trace.split.rounds
        assert answer.trace.split.rounds >= 3
        assert min(answer.trace.bytes_up, answer.trace.bytes_down) > 0
        assert answer.token_ids == whole.generate(CHATS[0], few).token_ids
    with pytest.raises(ProcessLookupError):
        os.kill(link, 0)


def test_an_unreachable_verifier_fails_the_answer_in_time(folder: Path) -> None:
    llm = loaded(folder)
    running = Verifier(llm)
    with sliced(folder, running, patience=0.3) as edge:
        edge.load()
        running.stop()
        with pytest.raises(AnswerError, match=r"no verifier for 0\.3 s"):
            edge.generate(CHATS[0], GREEDY)
    llm.close()


def test_different_numerics_are_rejected(folder: Path, verifier: Verifier) -> None:
    with (
        sliced(folder, verifier, dtype="bfloat16") as edge,
        pytest.raises(UserError, match=r"edge computes with bfloat16, .* verifier with float32, not quantized"),
    ):
        edge.load()


def test_drafts_are_cut_to_the_verifiers_maximum(folder: Path, whole: Any) -> None:
    llm = loaded(folder)
    edge = {"method": "draft_model", "draft": str(folder), "branches": 2, "length": "fixed:6"}
    with verifying(llm, limits=Limits(draft=3)) as running, sliced(folder, running, edge=edge) as far:
        answer = far.generate(CHATS[0], GREEDY)
    assert answer.token_ids == whole.generate(CHATS[0], GREEDY).token_ids
    assert max(step.drafted for step in answer.trace.steps) == 3
    llm.close()


def test_a_busy_or_silent_verifier_fails_the_answer_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = loaded(folder)
    with verifying(llm) as running, sliced(folder, running, patience=0.5) as edge:
        edge.load()

        def busy(self: SliceSession, _: Any) -> bool:
            self.fail(BUSY, "later")
            return False

        for refuse in (busy, lambda *_: False):
            monkeypatch.setattr(SliceSession, "prepare", refuse)
            with pytest.raises(AnswerError, match=r"no verifier for 0\.5 s"):
                edge.generate(CHATS[0], GREEDY)
    llm.close()


def test_closing_fails_a_waiting_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = loaded(folder)
    with verifying(llm) as running, sliced(folder, running) as edge, ThreadPoolExecutor(1) as pool:
        edge.load()
        asked = threading.Event()
        monkeypatch.setattr(SliceSession, "prepare", lambda _, work: work.slice.rows and asked.set())
        answer = pool.submit(edge.generate, CHATS[0], GREEDY)
        assert asked.wait(PATIENCE)
        edge.close()
        with pytest.raises(AnswerError):
            answer.result(PATIENCE / 2)
    llm.close()


def test_a_stream_that_ended_between_answers_is_no_break(folder: Path, whole: Any) -> None:
    llm = loaded(folder)
    with verifying(llm, limits=Limits(idle=1.0)) as running, sliced(folder, running) as edge:
        edge.load()
        deadline = time.monotonic() + PATIENCE
        while running.service.sessions and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = edge.generate(CHATS[0], GREEDY)
    assert answer.token_ids == whole.generate(CHATS[0], GREEDY).token_ids
    assert answer.trace.split.breaks == 0
    llm.close()


@pytest.mark.parametrize("states", ["float32", "bfloat16", "int8"])
def test_bytes_of_a_token_are_those_of_its_hidden_state(states: str, folder: Path, verifier: Verifier) -> None:
    size = {"float32": 4 * HIDDEN, "bfloat16": 2 * HIDDEN, "int8": HIDDEN + 4}[states]
    with sliced(folder, verifier, states=states) as llm:
        assert llm.lossy(GREEDY) == (states != "float32")
        short, long = (llm.generate(CHATS[0], Sampling(max_tokens=count, ignore_eos=True)) for count in (10, 110))
    with sliced(folder, verifier, states=states, edge=LOOKUP) as llm:
        with_drafts = llm.generate(CHATS[0], Sampling(max_tokens=110, ignore_eos=True))
        assert with_drafts.token_ids == long.token_ids
        assert with_drafts.trace.bytes_down < long.trace.bytes_down
    up, down = ((getattr(long.trace, way) - getattr(short.trace, way)) / 100 for way in ("bytes_up", "bytes_down"))
    # Fields of the message, what gRPC and HTTP/2 put before it, and HTTP/2's answers to what comes back.
    assert size < up <= size + 50
    assert down <= 50


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a head": ({"edge": {"method": "eagle", "head": "x"}}, "edge", "method eagle needs what the target computes"),
    "a head beside n-grams": ({"edge": {"method": "suffix", "head": "x"}}, "edge", "method suffix needs what"),
    "an option": ({"edge": {"method": "prompt_lookup", "nodes": 3}}, "edge", "edge: unknown option"),
    "another acceptance": ({"edge": {**LOOKUP, "acceptance": "typical"}}, "edge", "must be coupled"),
    "no cut": ({"cut": 0}, "cut", "cut must be"),
    "a measured cut of lossy states": ({"states": "int8"}, "cut", "name a number"),
    "a format": ({"states": "float16"}, "states", "unknown states 'float16'"),
    "an engine": ({"engine": "torch"}, "engine", "computed by the native step"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_options_are_rejected_before_anything_starts(what: str, folder: Path) -> None:
    options, key, message = REFUSED[what]
    with pytest.raises(UserError) as caught:
        backend("SlicedSpecDec")(str(folder), **options)
    assert (caught.value.key, message in str(caught.value)) == (key, True), caught.value


def test_auto_cut_gives_layers_to_the_faster_side(
    folder: Path, verifier: Verifier, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for edge, layer in ((0.0, LAYERS - 1), (0.9e-3, 1), (9.0, 1)):
        monkeypatch.setattr(verifier.service._slices, "_layer_seconds", 1e-3)
        monkeypatch.setattr(NativeTarget, "layer_seconds", lambda _, edge=edge: edge)
        with sliced(folder, verifier, cut="auto") as llm:
            assert llm.generate(CHATS[0], GREEDY).token_ids == whole.generate(CHATS[0], GREEDY).token_ids
            assert len(llm._target.lower.model.layers) == layer
            assert llm.target() == f"sliced, {layer} of {LAYERS} layers on the edge"


def test_the_baseline_is_the_stream_over_the_same_link(folder: Path) -> None:
    given = {"link": "lte", "acceptance": "coupled", "threads": 1}
    stream = backend("SplitSpecDec")(str(folder), edge={"mode": "stream"}, **given)
    llm, digests = backend("SlicedSpecDec")(str(folder), cut=2, edge=LOOKUP, **given), FileDigests(None)
    assert llm.baseline_identity(digests) == stream.identity(digests)
    others = [{"cut": 3}, {"states": "int8"}, {"edge": None}, {"link": "lan"}]
    known = [backend("SlicedSpecDec")(str(folder), **{"cut": 2, "edge": LOOKUP, **given, **other}) for other in others]
    assert llm.identity(digests) not in [other.identity(digests) for other in known]


def test_check_files_rejects_a_cut_beyond_the_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"a model of {LAYERS} layers is cut at 1 to {LAYERS - 1}, not {LAYERS}"):
        backend("SlicedSpecDec")(str(folder), cut=LAYERS).check_files()
    one = build_model(tmp_path / "one", layers=1)
    with pytest.raises(UserError, match="a model of 1 layer cannot be sliced"):
        backend("SlicedSpecDec")(str(one)).check_files()


@pytest.mark.parametrize(
    "sampling", [Sampling(logprobs=True), Sampling(repetition_penalty=1.1), Sampling(min_tokens=3), DRAWN]
)
def test_unsupported_sampling_is_rejected(sampling: Sampling, folder: Path) -> None:
    with pytest.raises(UserError):
        backend("SlicedSpecDec")(str(folder)).check(sampling)
