"""Close connections that a test leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ianvs_specdec.net.http import Client


@contextmanager
def closing_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every client that is created within the context, and its kept connections."""
    made: list[Client] = []
    original = Client.__init__

    def noted(self: Client, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Client, "__init__", noted)
    yield
    for client in made:
        client.close()
