"""Events of a server for its page ``/ui``."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def requested(address: str, path: str, headers: dict[str, str] | None = None) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path, headers=headers or {})
    try:
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def rows_of(address: str, requests: int) -> list[dict[str, Any]]:
    """The rows of the page after the end of ``requests`` requests."""
    rows: dict[int, dict[str, Any]] = {}
    with requested(address, "/ui/events") as response:
        for event in events(response):
            row = rows.setdefault(event.pop("id", -1), {"pieces": []})
            row["pieces"][event.pop("at", 0) :] = event.pop("pieces", [])
            row.update(event)
            if sum("end" in row for row in rows.values()) == requests:
                break
    return [row for number, row in sorted(rows.items()) if number >= 0]
