"""Servers that answer by a script. Pauses are short, and connections are closed with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server import Serve, serving
from tests.support.clients import closing_clients

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
