"""vLLM itself, on the embedded cloud model: output and acceptance are ours.

Needs an environment with vLLM; ``make test-vllm`` makes one and names its Python in SPECDEC_VLLM_PYTHON.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.specdec import AutoregressiveLLM, EagleSpecDecLLM
from ianvs_specdec.backends.vllm.backend import VllmLLM
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Message, Sampling
from tests.support.paths import EXAMPLE

MODEL, HEAD = str(EXAMPLE / "models" / "cloud"), str(EXAMPLE / "models" / "cloud-eagle")
PYTHON = os.environ.get("SPECDEC_VLLM_PYTHON", "")
DRAFTS = 4
WINDOW = 512
GREEDY = Sampling(max_tokens=64)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="no environment with vLLM: SPECDEC_VLLM_PYTHON names none (make test-vllm)"),
]


def questions(count: int) -> list[list[Message]]:
    """Some of the example's questions, short and long, in both data sets."""
    texts: list[str] = []
    for name in ("open-ended", "knowledge"):
        rows = (EXAMPLE / "dataset" / name / "test.jsonl").read_text(encoding="utf-8").splitlines()
        for row in rows[:: len(rows) // (count // 2)][: count // 2]:
            question = json.loads(row)["question"]
            texts.append(question if isinstance(question, str) else question["turns"][0])
    return [[{"role": "user", "content": text}] for text in texts]


CHATS = questions(8)


def vllm(model: str = MODEL, **options: Any) -> VllmLLM:
    return VllmLLM(model, vllm_python=PYTHON, dtype="float32", threads=1, **options)


def answers(llm: LLM, sampling: Sampling = GREEDY) -> list[Completion]:
    return [llm.generate(chat, sampling) for chat in CHATS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cloud model with a window that a test can fill."""
    folder = tmp_path_factory.mktemp("model") / "cloud"
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": WINDOW}), encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def plain(model: str) -> Iterator[VllmLLM]:
    with vllm(model, truncate_prompts=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def ours(model: str) -> Iterator[AutoregressiveLLM]:
    with AutoregressiveLLM(model, dtype="float32", threads=1, truncate_prompts=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def speculative(plain: VllmLLM) -> Iterator[VllmLLM]:
    """vLLM with the shipped head, after the engine without it is closed, as in a job."""
    plain.load()
    assert plain._worker is not None
    pid = plain._worker.pid
    plain.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    head = {"method": "eagle", "model": HEAD, "num_speculative_tokens": DRAFTS}
    with vllm(speculative=head) as llm:
        yield llm


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_greedy_output_is_ours(plain: VllmLLM, ours: AutoregressiveLLM) -> None:
    pieces: list[str] = []
    found, expected = answers(plain), answers(ours)
    assert ids(found) == ids(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.finish_reason, one.prompt_tokens) == (
            other.text,
            other.finish_reason,
            other.prompt_tokens,
        )
        assert one.trace.tokens == one.completion_tokens == 1 + sum(step.emitted for step in one.trace.steps)
        assert {(step.drafted, step.emitted) for step in one.trace.steps} == {(0, 1)}
        assert 0 < one.trace.chunks[0][0] < one.trace.chunks[-1][0]
    plain.generate(CHATS[0], GREEDY, lambda text, _: pieces.append(text))
    assert "".join(pieces) == found[0].text
    assert len(pieces) > 3


def test_stop_strings_and_truncation_are_ours(plain: VllmLLM, ours: AutoregressiveLLM) -> None:
    whole = ours.generate(CHATS[0], GREEDY)
    stop = whole.text[len(whole.text) // 2 :][:3]
    long: list[Message] = [{"role": "user", "content": "one two three " * 400}]
    for chat, sampling in (
        (CHATS[0], Sampling(max_tokens=64, stop=(stop,))),
        (CHATS[1], Sampling(max_tokens=7)),
        (CHATS[2], Sampling(max_tokens=32, repetition_penalty=1.3)),
        (long, Sampling(max_tokens=4)),
        (long, Sampling(max_tokens=1000)),
    ):
        found, expected = plain.generate(chat, sampling), ours.generate(chat, sampling)
        assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
        assert (found.finish_reason, found.truncated) == (expected.finish_reason, expected.truncated)
        assert chat is not long or expected.prompt_tokens == max(WINDOW - sampling.max_tokens, WINDOW // 2)


def test_sampling_without_drafts_is_seeded(plain: VllmLLM) -> None:
    story: list[Message] = [{"role": "user", "content": "Write a story about a fox."}]
    sampled = [plain.generate(story, Sampling(max_tokens=32, temperature=1.5, seed=seed)) for seed in (1, 1, 2, 3)]
    first, again, *others = ids(sampled)
    assert first == again
    assert first not in others
    with pytest.raises(AnswerError, match="temperature must be in"):
        plain.generate(story, Sampling(max_tokens=4, temperature=5.0))
    assert plain.generate(story, GREEDY).completion_tokens


def test_memory_is_that_of_weights_and_cache(plain: VllmLLM) -> None:
    plain.load()
    weights = 2 * (Path(MODEL) / "model.safetensors").stat().st_size
    cache = 256 << 20
    assert plain.memory() == pytest.approx(weights + cache, rel=0.02)


def test_token_probabilities_are_ours(speculative: VllmLLM, ours: AutoregressiveLLM) -> None:
    asked = replace(GREEDY, logprobs=True)
    for chat in CHATS:
        found, expected = speculative.generate(chat, asked), ours.generate(chat, asked)
        assert found.token_ids == expected.token_ids == speculative.generate(chat, GREEDY).token_ids
        assert len(found.trace.confidence or ()) == len(found.token_ids)
        assert found.trace.characters == expected.trace.characters
        for told, own in zip(found.trace.confidence or (), expected.trace.confidence or (), strict=True):
            assert told[0] == pytest.approx(own[0], abs=5e-3)
            assert told[2] == pytest.approx(own[2], abs=5e-3)
            # What is beyond the likeliest tokens counts as one: a lower bound.
            assert 0 <= told[1] <= own[1] + 5e-3


def test_output_and_acceptance_of_the_shipped_head_are_ours(speculative: VllmLLM, ours: AutoregressiveLLM) -> None:
    found = answers(speculative)
    assert ids(found) == ids(answers(ours))
    options = {"head": HEAD, "tree": "chain", "depth": DRAFTS, "length": f"fixed:{DRAFTS}"}
    with EagleSpecDecLLM(MODEL, dtype="float32", threads=1, **options) as eagle:
        expected = answers(eagle)
    taus = []
    for completions in (found, expected):
        steps = [step for completion in completions for step in completion.trace.steps]
        taus.append(sum(step.emitted for step in steps) / len(steps))
    assert taus[0] == pytest.approx(taus[1], rel=0.05)
    assert taus[0] > 2, "nothing was accepted"
    for completion in found:
        assert completion.trace.tokens == 1 + sum(step.emitted for step in completion.trace.steps)
        assert all(step.accepted <= step.drafted <= DRAFTS for step in completion.trace.steps)
        assert all(step.emitted == step.accepted + 1 for step in completion.trace.steps[:-1])


def test_concurrent_speculation_is_lossless(speculative: VllmLLM, ours: AutoregressiveLLM) -> None:
    with ThreadPoolExecutor(len(CHATS)) as threads:
        found = list(threads.map(lambda chat: speculative.generate(chat, GREEDY), CHATS))
    assert ids(found) == ids(answers(ours))
    assert all(completion.trace.steps for completion in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine_args": {"block_sizes": 32}}, "no engine argument block_sizes, did you mean block_size"),
        ({"speculative": {"method": "clairvoyance", "model": HEAD, "num_speculative_tokens": 2}}, "method"),
    ],
)
def test_unknown_arguments_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        vllm(**options).load()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
