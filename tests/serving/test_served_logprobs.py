"""``logprobs`` of the protocol, and what our own client makes of them: exactly what the engine says. And TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.specdec import PromptLookupLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Message, Sampling
from tests.support.servers import make_certificate

from .conftest import Server, serving

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


def test_logprobs_of_all_tokens(server: Server, home: Completion) -> None:
    client = server.client()
    check(client.chat.completions.create(**REQUEST).choices[0], home)
    chunks = [chunk for chunk in client.chat.completions.create(**REQUEST, stream=True) if chunk.choices]
    check(chunks[-1].choices[0], home)
    assert all(chunk.choices[0].logprobs is None for chunk in chunks[:-1])
    assert client.chat.completions.create(**{**REQUEST, "logprobs": False}).choices[0].logprobs is None


def test_api_backend_reads_logprobs(server: Server, home: Completion) -> None:
    with APIBasedLLM("tiny", api_base_url=server.url, api_extra_body={"specdec": True}) as model:
        far = model.generate(CHAT, SAMPLING)
    assert far.token_ids == home.token_ids
    assert far.trace.characters == home.trace.characters
    for told, own in zip(far.trace.confidence or (), home.trace.confidence or (), strict=True):
        assert told == pytest.approx(own, abs=1e-4)


def test_tls_certificate_is_verified(tiny: Path, tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    certificate, key = make_certificate(tmp_path / "own")
    other, _ = make_certificate(tmp_path / "other")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    question = [{"role": "user", "content": "again"}]
    with serving(tmp_path, "--model", str(tiny), *tls) as server:
        assert server.url.startswith("https://")
        given = {"api_base_url": server.url, "api_retries": 0}
        with APIBasedLLM("tiny", api_ca=str(certificate), **given) as model:
            assert model.generate(question, Sampling(max_tokens=4)).completion_tokens == 4
        with APIBasedLLM("tiny", api_ca=str(other), **given) as model, pytest.raises(UserError, match="api_ca names"):
            model.generate(question, Sampling(max_tokens=4))
    for file, reason in ((key, "no certificate"), (tmp_path / "none", "No such file")):
        with (
            APIBasedLLM("tiny", api_base_url="https://127.0.0.1:1/v1", api_ca=str(file)) as model,
            pytest.raises(UserError, match=f"api_ca.*{reason}"),
        ):
            model.generate(question, Sampling(max_tokens=4))
