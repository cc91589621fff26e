"""Back end ``vllm`` with a stand-in for its worker."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.vllm import backend as vllm_backend
from ianvs_specdec.backends.vllm.backend import VllmLLM, steps_of
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling, Step
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
SPECULATIVE = {"method": "eagle", "model": str(MODELS / "cloud-eagle"), "num_speculative_tokens": 3}


def ask(llm: VllmLLM, **sampling: Any) -> Any:
    return llm.generate([{"role": "user", "content": "hello"}], Sampling(**{"max_tokens": 20, **sampling}))


def test_an_answer_is_assembled_from_steps_and_drafts(stand_in: Callable[..., VllmLLM], tmp_path: Path) -> None:
    pieces: list[tuple[str, int]] = []
    llm = stand_in(speculative=SPECULATIVE)
    answer = llm.generate(
        [{"role": "user", "content": "hello"}], Sampling(max_tokens=20), lambda text, n: pieces.append((text, n))
    )
    assert answer.token_ids == [65, 66, 67, 68, 69, 70, 71, 72, 73]
    assert (answer.finish_reason, answer.completion_tokens) == ("stop", 9)
    assert [tokens for _, tokens in answer.trace.chunks] == [1, 3, 2, 1, 1, 1]
    assert answer.trace.steps == [Step(3, 2, 3, 4), Step(3, 1, 2, 4), *[Step(0, 0, 1, 1)] * 3]
    times = [seconds for seconds, _ in answer.trace.chunks]
    assert times == sorted(times)
    assert times[0] > 0
    assert "".join(text for text, _ in pieces) == answer.text
    assert sum(n for _, n in pieces) == 9
    assert llm.memory() == 77
    assert (llm.hardware()["device"], llm.hardware()["vllm"]) == ("stub", "9.9")
    llm.close()
    assert llm.memory() is None
    assert not list(tmp_path.glob("*.log")), "the log of an engine that was closed is left behind"


def test_log_probabilities_end_with_the_answer(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in(speculative=SPECULATIVE)
    assert ask(llm).trace.confidence is None
    whole = ask(llm, logprobs=True)
    assert [round(logprob, 2) for logprob, _, _ in whole.trace.confidence] == [-i / 100 for i in whole.token_ids]
    p, other = math.exp(-0.65), math.exp(-2.5)
    assert whole.trace.confidence[0][2] == pytest.approx(p - other)
    rest = 1 - p - other
    assert whole.trace.confidence[0][1] == pytest.approx(p * 0.65 + other * 2.5 - rest * math.log(rest))
    assert sum(whole.trace.characters) == len(whole.text)
    stopped = ask(llm, logprobs=True, stop=(whole.text[3:5],))
    assert len(stopped.trace.confidence) == len(stopped.token_ids) < len(whole.token_ids)
    assert stopped.trace.confidence == whole.trace.confidence[: len(stopped.token_ids)]


def test_the_engine_gets_options_and_absolute_folders(
    stand_in: Callable[..., VllmLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(MODELS)
    dynamic = {"num_speculative_tokens_per_batch_size": [[1, 3], [8, 1]]}
    llm = stand_in(
        speculative={**SPECULATIVE, "model": "cloud-eagle", **dynamic},
        engine_args={"block_size": 32},
        dtype="float32",
        max_model_len=300,
        enforce_eager=False,
    )
    llm.load()
    assert llm._worker is not None
    assert llm._worker.ready["engine"] == {
        "model": str(MODELS / "edge"),
        "dtype": "float32",
        "trust_remote_code": False,
        "max_model_len": 300,
        "enforce_eager": False,
        "block_size": 32,
        "speculative_config": {**SPECULATIVE, **dynamic},
    }


def test_a_stop_string_ends_output_and_request(
    stand_in: Callable[..., VllmLLM],
) -> None:
    llm = stand_in("slow", speculative=SPECULATIVE)
    llm.load()
    assert llm._chat is not None
    # The fifth token is the first of the third chunk, which the output loses a token of.
    stop = llm._chat.text([68, 69])
    answer = ask(llm, stop=(stop,))
    assert answer.token_ids == [65, 66, 67, 68, 69]
    assert answer.finish_reason == "stop"
    assert stop not in answer.text
    assert llm._chat.text([65, 66, 67, 68, 69]) == answer.text + stop
    assert answer.trace.steps == [Step(3, 2, 3, 4), Step(3, 1, 1, 4)]
    assert "aborted" in llm._worker.log.read_text()  # type: ignore[union-attr]


def test_the_token_limit_leaves_room_in_the_window(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in(engine_args={"window": 40}, truncate_prompts=True)
    messages = [{"role": "user", "content": "x " * 300}]
    answer = llm.generate(messages, Sampling(max_tokens=5))
    assert (answer.finish_reason, answer.completion_tokens) == ("length", 5)
    assert answer.prompt_tokens == 35
    assert answer.truncated > 200
    assert llm.generate(messages, Sampling(max_tokens=400)).prompt_tokens == 20
    assert llm._worker is not None
    assert "asked for 20\n" in llm._worker.log.read_text()


def test_requests_run_concurrently(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in("together")
    assert llm.concurrent
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda n: ask(llm, max_tokens=n), (2, 3, 5, 20)))
    assert [answer.completion_tokens for answer in answers] == [2, 3, 5, 9]
    assert [answer.token_ids for answer in answers] == [answers[3].token_ids[:n] for n in (2, 3, 5, 9)]


def test_a_closed_engine_can_be_restarted(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in()
    for _ in range(2):
        assert ask(llm).completion_tokens == 9
        assert llm._worker is not None
        pid = llm._worker.pid
        llm.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_killed_worker_fails_all_requests(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in("die")
    llm.load()
    barrier = threading.Barrier(3)

    def fail(_: int) -> str:
        barrier.wait()
        with pytest.raises(UserError) as error:
            ask(llm)
        return str(error.value)

    with ThreadPoolExecutor(3) as pool:
        for message in pool.map(fail, range(3)):
            assert "killed by signal 9, as the system does where memory runs out" in message
            assert "about to go" in message
            assert "\n" not in message
    # It stays dead until it is closed, then starts anew.
    with pytest.raises(UserError, match="before the request"):
        ask(llm)


def test_load_errors_are_one_line(stand_in: Callable[..., VllmLLM], tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        stand_in("no").load()
    assert "there is no such head" in str(error.value)
    assert "gpu_memory_utilization" in str(error.value), "no hint at what helps"
    with pytest.raises(UserError, match=r"ended with status 3 while it loaded.*the last words"):
        stand_in("crash").load()


def test_a_rejected_request_does_not_affect_others(stand_in: Callable[..., VllmLLM]) -> None:
    llm = stand_in("refuse")
    with pytest.raises(AnswerError, match="the prompt is odd") as error:
        ask(llm)
    assert [what for _, what in error.value.failures] == ["refused"]
    assert ask(llm, max_tokens=8).completion_tokens == 8


def test_sampled_drafts_are_rejected_on_the_cpu_build(
    stand_in: Callable[..., VllmLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmLLM, "load", lambda self: pytest.fail("the model was loaded"))
    sampled = Sampling(temperature=0.7)
    llm = stand_in(speculative=SPECULATIVE)
    with pytest.raises(UserError, match=r"55005.*temperature 0") as error:
        ask(llm, temperature=0.7)
    assert error.value.key == "temperature"
    chosen = {"backend": "vllm", "model": str(MODELS / "edge"), "vllm_python": sys.executable}
    with pytest.raises(UserError, match="55005"):
        ModelSettings.parse({**chosen, "speculative": SPECULATIVE, "temperature": 0.7})
    ModelSettings.parse({**chosen, "speculative": SPECULATIVE})
    llm.check(Sampling())
    stand_in().check(sampled)
    stand_in(cpu=False, speculative=SPECULATIVE).check(sampled)


def test_the_engines_device_overrides_the_package_name(stand_in: Callable[..., VllmLLM]) -> None:
    with pytest.raises(UserError, match="55005"):
        ask(stand_in(cpu=False, speculative=SPECULATIVE), temperature=0.7)


def test_environment_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "PYTHONPATH" not in vllm_backend.environment(None)
    assert vllm_backend.environment(None)["OMP_NUM_THREADS"] == "7"
    assert vllm_backend.environment(2)["OMP_NUM_THREADS"] == "2"


def test_identity_has_all_that_answers_depend_on(stand_in: Callable[..., VllmLLM], tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")
    plain = stand_in(dtype="float32")
    eagle = stand_in(dtype="float32", speculative=SPECULATIVE)
    assert plain.identity(digests) == plain.baseline_identity(digests) == eagle.baseline_identity(digests)
    assert eagle.identity(digests) != plain.identity(digests)
    assert eagle.identity(digests)["speculative"]["model"] == digests.folder(MODELS / "cloud-eagle")
    assert str(MODELS) not in str(eagle.identity(digests))
    changes: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"max_num_seqs": 4},
        {"engine_args": {"block_size": 64}},
        {"threads": 2},
        {"vllm": "10.0"},
        {"speculative": {**SPECULATIVE, "num_speculative_tokens": 4}},
    ]
    others = [str(stand_in(**{"dtype": "float32", **change}).identity(digests)) for change in changes]
    seen = [str(plain.identity(digests)), str(eagle.identity(digests)), *others]
    assert len(set(seen)) == len(seen)
    assert plain.method == "none"
    assert eagle.method == "eagle"


@pytest.mark.parametrize(
    ("received", "kept", "drafts", "steps"),
    [
        ([1, 4, 1], [1, 4, 1], [(5, 3), (5, 0)], [Step(5, 3, 4, 6), Step(5, 0, 1, 6)]),
        # Only one of the two short steps had a draft: the earlier one is taken.
        ([1, 1, 1, 3], [1, 1, 1, 3], [(2, 0), (2, 2)], [Step(2, 0, 1, 3), Step(0, 0, 1, 1), Step(2, 2, 3, 3)]),
        # The last step was cut off, by the engine or here.
        ([1, 2], [1, 2], [(5, 4)], [Step(5, 4, 2, 6)]),
        ([1, 5], [1, 2], [(5, 4)], [Step(5, 4, 2, 6)]),
        # The engine took a step more before it heard that the output was complete.
        ([1, 3], [1, 2], [(5, 2), (5, 5)], [Step(5, 2, 2, 6)]),
        # Counts that do not belong together tell nothing.
        ([1, 3, 2], [1, 3, 2], [(5, 1), (5, 1)], []),
    ],
)
def test_steps_have_the_sums_of_the_engine(
    received: list[int], kept: list[int], drafts: list[tuple[int, int]], steps: list[Step]
) -> None:
    assert steps_of(received, kept, drafts) == steps
