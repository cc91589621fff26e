"""What every test of this room ends with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients import closing_clients


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with closing_clients(monkeypatch):
        yield
