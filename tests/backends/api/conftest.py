"""Scripted servers with short pauses. Connections are closed after each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.types import Completion, Sampling
from tests.support.api_server import ScriptedAPI, Serve, serving
from tests.support.clients import closing_clients
from tests.support.servers import response

KEY = 'sk-a"b/c+d\\e=0123456789'
"""A key that looks different in JSON, in a URL and in HTML."""


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with closing_clients(monkeypatch):
        yield


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("STUB_KEY", KEY)
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.01)
    monkeypatch.setattr("ianvs_specdec.backends.api.endpoints.FIRST_REST", 0.05)
    with serving() as start:
        yield start


def llm(*servers: ScriptedAPI, **options: Any) -> APIBasedLLM:
    """A client of one server or several."""
    if len(servers) == 1:
        return APIBasedLLM("stub", **{"api_base_url": servers[0].url, "api_key_env": "STUB_KEY", **options})
    return APIBasedLLM("stub", **{"api_endpoints": [{"base_url": server.url} for server in servers], **options})


def ask(model: APIBasedLLM, prompt: str = "hello", on_chunk: Any = None, **sampling: Any) -> Completion:
    return model.generate([{"role": "user", "content": prompt}], Sampling(**sampling), on_chunk)


def stream_of(*chunks: dict[str, Any] | str) -> bytes:
    """A streamed response of chunks, as objects or as JSON."""
    events = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in (*chunks, "[DONE]")]
    body = "".join(f"data: {event}\n\n" for event in events)
    return response(body.encode(), headers="Content-Type: text/event-stream\r\n", chunked=50)


def choice(content: str | None, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with a piece of the answer."""
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason, **fields}]}


def usage(tokens: int) -> dict[str, Any]:
    """A chunk with the token counts."""
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
