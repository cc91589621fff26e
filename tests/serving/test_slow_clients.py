"""A client that does not read is disconnected."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.serving import app
from ianvs_specdec.serving.app import Service, create_app
from ianvs_specdec.serving.engine import RequestQueue
from ianvs_specdec.serving.metrics import Metrics
from tests.support.instant import InstantLLM

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()


def test_stalled_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STALLED_SECONDS", 0.02)
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "http_version": "1.1", "scheme": "http", "method": "POST", "headers": headers}
    scope |= {"path": "/v1/chat/completions", "root_path": "", "query_string": b""}
    metrics, events = Metrics("m", "instant"), [{"type": "http.request", "body": BODY, "more_body": False}]

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def receive() -> Any:
        return events.pop(0) if events else await never()

    async def serve() -> None:
        engine = RequestQueue(InstantLLM("m"), 0, 1, metrics)
        await create_app(Service(("m",), Sampling(), "", 0.02, 1000), engine, metrics)(scope, receive, never)
        while b"specdec_in_flight 0.0" not in metrics.text():
            await asyncio.sleep(0.001)
        engine.close()

    asyncio.run(asyncio.wait_for(serve(), 20))
    counted = [line for line in metrics.text().decode().splitlines() if line.startswith("specdec_requests_total{")]
    (outcome,) = [line for line in counted if not line.endswith(" 0.0")]
    assert "completed" in outcome or "deadline" in outcome
