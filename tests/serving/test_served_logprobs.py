"""``logprobs`` of the protocol, and what our own client makes of them: exactly what the engine says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.specdec import PromptLookupLLM
from ianvs_specdec.common.types import Completion, Message, Sampling

from .conftest import Server

CHAT: list[Message] = [{"role": "user", "content": "again and again and again"}]
SAMPLING = Sampling(max_tokens=24, temperature=1.0, seed=5, logprobs=True)
REQUEST: dict[str, Any] = {"model": "tiny", "messages": CHAT, "temperature": 1.0, "seed": 5, "logprobs": True}


@pytest.fixture(scope="module")
def home(tiny: Path) -> Completion:
    with PromptLookupLLM(str(tiny)) as engine:
        return engine.generate(CHAT, SAMPLING)


def check(choice: Any, home: Completion) -> None:
    content = choice.logprobs.content
    assert [token.logprob for token in content] == pytest.approx(
        [logprob for logprob, _, _ in home.trace.confidence or ()], abs=1e-4
    )
    assert "".join(token.token for token in content) == home.text
    assert all(bytes(token.bytes).decode() == token.token for token in content)


def test_every_token_is_told_with_its_log_probability(server: Server, home: Completion) -> None:
    client = server.client()
    check(client.chat.completions.create(**REQUEST).choices[0], home)
    chunks = [chunk for chunk in client.chat.completions.create(**REQUEST, stream=True) if chunk.choices]
    check(chunks[-1].choices[0], home)
    assert all(chunk.choices[0].logprobs is None for chunk in chunks[:-1])
    assert client.chat.completions.create(**{**REQUEST, "logprobs": False}).choices[0].logprobs is None


def test_our_own_client_knows_what_the_engine_knows(server: Server, home: Completion) -> None:
    with APIBasedLLM("tiny", api_base_url=server.url, api_extra_body={"specdec": True}) as model:
        far = model.generate(CHAT, SAMPLING)
    assert far.token_ids == home.token_ids
    assert far.trace.characters == home.trace.characters
    for told, own in zip(far.trace.confidence or (), home.trace.confidence or (), strict=True):
        assert told == pytest.approx(own, abs=1e-4)
