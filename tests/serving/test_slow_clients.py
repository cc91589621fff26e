"""Clients that do not send or do not read do not stay for ever. Their connections are played: no test waits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.serving import app
from ianvs_specdec.serving.app import ChatEndpoint, Service
from ianvs_specdec.serving.engine import Engine
from ianvs_specdec.serving.metrics import Metrics
from tests.support.instant import Instant

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/chat/completions",
    "headers": [(b"content-type", b"application/json")],
}


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


def outcomes(receive: Any, send: Any) -> tuple[str, ...]:
    """Serve one request, with a deadline of no time to speak of; the outcomes that were counted."""
    metrics = Metrics("m", "instant")

    async def serve() -> None:
        engine = Engine(Instant("m"), 0, 1, metrics)
        await ChatEndpoint(Service(("m",), Sampling(), "", 0.02, 1000), engine, metrics)(dict(SCOPE), receive, send)
        while b"specdec_in_flight 0.0" not in metrics.text():
            await asyncio.sleep(0.001)
        engine.close()

    async def served_in_time() -> bool:
        done, _ = await asyncio.wait({asyncio.ensure_future(serve())}, timeout=20)
        return bool(done)

    assert asyncio.run(served_in_time())
    lines = metrics.text().decode().splitlines()
    counted = [line.split() for line in lines if line.startswith("specdec_requests_total{")]
    return tuple(name.partition('"')[2].partition('"')[0] for name, value in counted if float(value))


def test_who_does_not_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.02)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    assert outcomes(never, send) == ("rejected",)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["code"] == "body_too_slow"


def test_who_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STALLED_SECONDS", 0.02)
    events = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Any:
        return events.pop(0) if events else await never()

    assert outcomes(receive, never) in (("completed",), ("deadline",))
