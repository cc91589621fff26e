"""Token probabilities from every back end that runs here: one triple per token, none changes an answer, and all back
ends tell the same.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion, Message, Sampling
from tests.support.folders import CLOUD, EDGE, EXAMPLE
from tests.support.slow_cases import slow_unless

LINES = (EXAMPLE / "dataset" / "knowledge" / "test.jsonl").read_text(encoding="utf-8").splitlines()[::120]
CHATS: list[list[Message]] = [[{"role": "user", "content": json.loads(line)["question"]["turns"][0]}] for line in LINES]
PLAIN = Sampling(max_tokens=24)
ASKED = replace(PLAIN, logprobs=True)
HEAD = EXAMPLE / "models" / "cloud-eagle"
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "PromptLookup": ("PromptLookup", {}),
    "eagle": ("EagleSpecDec", {"head": str(HEAD)}),
    "draft model": ("DraftModelSpecDec", {"draft": str(EDGE)}),
    "huggingface": ("huggingface", {}),
}


def load(name: str, **options: Any) -> LLM:
    return backend(name)(str(CLOUD), **{"dtype": "float32", "threads": 1, **options})


def answers(llm: LLM, sampling: Sampling) -> list[Completion]:
    return [llm.generate(chat, sampling) for chat in CHATS]


@pytest.fixture(scope="module")
def ours() -> list[Completion]:
    with load("autoregressive") as llm:
        return answers(llm, ASKED)


def check(found: list[Completion], plain: list[Completion], ours: list[Completion], tolerance: float = 1e-3) -> None:
    for one, without, expected in zip(found, plain, ours, strict=True):
        assert one.token_ids == without.token_ids == expected.token_ids
        assert without.trace.confidence is None
        assert without.trace.characters is None
        assert one.trace.confidence is not None
        assert len(one.trace.confidence) == len(one.trace.characters or ()) == one.completion_tokens
        for told, own in zip(one.trace.confidence, expected.trace.confidence or (), strict=True):
            assert told == pytest.approx(own, abs=tolerance)
        assert one.trace.characters == expected.trace.characters


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_unless(BACKENDS, {"eagle", "huggingface"}.__contains__))
def test_back_ends_tell_the_same(name: str, ours: list[Completion]) -> None:
    chosen, options = BACKENDS[name]
    with load(chosen, **options) as llm:
        check(answers(llm, ASKED), answers(llm, PLAIN), ours)


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_llama_cpp_tells_the_same(ours: list[Completion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RESULT_SAVED_URL", raising=False)
    with backend("llamacpp")(str(CLOUD), gguf_type="f32", threads=1) as llm:
        check(answers(llm, ASKED), answers(llm, PLAIN), ours)


def test_characters_lead_from_a_place_in_the_text_to_its_token(ours: list[Completion]) -> None:
    for completion in ours:
        assert sum(completion.trace.characters or ()) == len(completion.text)
        ended = completion.finish_reason == "stop"
        assert ((completion.trace.characters or [1])[-1] == 0) == ended, "what ends an answer adds no text"


@pytest.mark.slow
def test_sampled_answers_are_told_before_temperature_and_top_k(ours: list[Completion]) -> None:
    sampling = Sampling(max_tokens=24, temperature=3.0, top_k=2, repetition_penalty=1.4, seed=1, logprobs=True)
    with load("autoregressive") as engine, load("huggingface") as peer:
        for llm in (engine, peer):
            answer = llm.generate(CHATS[0], sampling)
            # The first place is the prompt's, whatever is drawn there.
            assert (answer.trace.confidence or [])[0][1:] == pytest.approx(
                (ours[0].trace.confidence or [])[0][1:], abs=1e-3
            )
