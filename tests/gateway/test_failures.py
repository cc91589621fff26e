"""Failures of the cloud, disconnecting clients, shutdown."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ianvs_specdec.common.errors import AnswerError, ContextWindowError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from tests.serving.conftest import LONGEST, wait_until
from tests.support.stub_server import StubServer

from .conftest import Gate, Opens, Says, Words, pair, side, stub_side

LONG = 1000.0
"""Seconds that never pass in a test."""


def opened_to(gate: Opens, stub: StubServer, *script: str | int, **options: Any) -> tuple[Gate, Says]:
    stub.script = list(script)
    edge = Says("from the edge")
    return gate(side("small", edge, logprobs=True), stub_side(stub, api_retries=0), **options), edge


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("action", "wait"), [(500, LONG), ("hang", 0.05)])
def test_fallback_to_the_edge(gate: Opens, stub: StubServer, action: str | int, wait: float, stream: bool) -> None:
    opened, edge = opened_to(gate, stub, action, fallback=wait)
    if stream:
        first, *others = opened.stream("a hard one")
        said, routing = "".join(one["choices"][0]["delta"].get("content", "") for one in others), first["routing"]
    else:
        _, headers, body = opened.chat("a hard one")
        said, routing = body["choices"][0]["message"]["content"], body["routing"]
        assert (headers["x-specdec-side"], headers["x-specdec-reason"]) == ("edge", routing["reason"])
    assert said == "from the edge"
    assert routing["hard"] is True
    reason = "the cloud had not begun after 0.05 s" if action == "hang" else "the cloud failed (upstream)"
    assert (routing["side"], routing["reason"]) == ("edge", f"fallback: {reason}")
    assert len(edge.asked) == 1
    found = opened.metrics()
    assert (found["fallbacks_total"], found["gateway_requests_total.completed"]) == (1, 1)
    # What is given up works no longer, and counts once.
    stub.released.set()
    wait_until(lambda: opened.metrics()["in_flight.cloud"] == 0)
    outcome = "deadline" if action == "hang" else "failed"
    assert opened.metrics()[f"requests_total.{outcome}.cloud"] == 1


def test_fallback_only_before_the_first_piece(gate: Opens, stub: StubServer) -> None:
    """Until a client has seen a piece the edge takes over; later a failure is an event of the stream."""
    opened, edge = opened_to(gate, stub, "die", fallback=LONG)
    first, *pieces, last = opened.stream("a hard one")
    assert first["routing"]["side"] == "cloud"
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in pieces).startswith("The answer")
    assert last["error"]["code"] == "upstream"
    assert edge.asked == []
    for pieces, action in ((stub.pieces, "die"), (["\x00"], "truncate")):
        stub.pieces, stub.script = pieces, [action]
        status, headers, body = opened.chat("a hard one")
        assert (status, headers["x-specdec-side"], headers["x-specdec-reason"][:9]) == (200, "edge", "fallback:")
        assert body["choices"][0]["message"]["content"] == "from the edge"


@pytest.mark.parametrize(("action", "answer"), [("think", "The answer is B."), ("think die", "from the edge")])
def test_thought_stops_the_fallback_timer(gate: Opens, stub: StubServer, action: str, answer: str) -> None:
    opened, _ = opened_to(gate, stub, action, fallback=LONG)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(opened.stream, "a hard one")
        wait_until(lambda: any(job.timer and job.timer.cancelled() for job in tuple(opened.gateway._jobs)))
        stub.released.set()
        _, *others = asked.result()
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in others) == answer


def test_no_fallback_without_option(gate: Opens, stub: StubServer) -> None:
    opened, edge = opened_to(gate, stub, 500)
    status, _, body = opened.chat("a hard one")
    assert (status, body["error"]["code"]) == (502, "upstream")
    assert edge.asked == []


def test_no_fallback_for_the_model_cloud(gate: Opens, stub: StubServer) -> None:
    opened, edge = opened_to(gate, stub, 500, fallback=LONG)
    assert opened.chat("a hard one", "cloud")[0] == 502
    assert edge.asked == []


def test_cascade_falls_back_to_existing_answer(gate: Opens, stub: StubServer) -> None:
    router = CascadeRouter("mean_probability", 0.0)
    opened, edge = opened_to(gate, stub, 500, router=router, fallback=LONG)
    _, headers, body = opened.chat("which?")
    assert (body["choices"][0]["message"]["content"], headers["x-specdec-side"]) == ("from the edge", "edge")
    assert len(edge.asked) == 1


def test_fallback_for_too_long_chats(gate: Opens) -> None:
    class Small(Says):
        def generate(self, *arguments: Any, **more: Any) -> Any:
            raise ContextWindowError("too long")

    opened = gate(side("small", Says("from the edge")), side("large", Small("")), fallback=LONG)
    assert opened.says("a hard one") == "from the edge"


def test_no_fallback_to_failed_edge(gate: Opens, stub: StubServer) -> None:
    class Fails(Says):
        def generate(self, messages: Any, *arguments: Any, **more: Any) -> Any:
            self.asked.append(messages)
            raise AnswerError("no answer")

    stub.script = [500]
    edge = Fails("")
    router = CascadeRouter("mean_probability", 0.5)
    opened = gate(side("small", edge, logprobs=True), stub_side(stub, api_retries=0), router, fallback=LONG)
    status, _, body = opened.chat("which?")
    assert (status, body["error"]["code"], len(edge.asked)) == (502, "upstream", 1)
    assert opened.metrics()["fallbacks_total"] == 0


@pytest.mark.parametrize("busy", ["edge", "router"])
def test_cascade_with_full_edge_queue(gate: Opens, busy: str) -> None:
    opened, edge, cloud = pair(gate, CascadeRouter("mean_probability", 0.5), queue=2)
    edge.go.clear()
    waiting = opened.chats(10, "easy", busy)
    wait_until(lambda: len(opened.gateway._jobs) == 10)
    status, headers, body = opened.chat("easy")
    assert (status, body["error"]["code"], headers["retry-after"]) == (429, "queue_full", "1")
    assert cloud.asked == []
    edge.go.set()
    assert {connection.getresponse().status for connection in waiting} == {200}
    for connection in waiting:
        connection.close()


@pytest.mark.parametrize("why", ["left", "full"])
def test_budget_is_refunded(gate: Opens, why: str) -> None:
    asked, go = threading.Event(), threading.Event()

    class Waits(Words):
        def score(self, query: Query) -> float:
            asked.set()
            assert go.wait(LONGEST)
            return super().score(query)

    router = BudgetRouter(Waits(), cloud_share=1.0, window=10)
    opened, _, cloud = pair(gate, router, queue=0)
    cloud.go.clear()
    waiting = opened.chats(8 * (why == "full"), "hard", "cloud")
    wait_until(lambda: len(cloud.asked) == len(waiting))
    (connection,) = opened.chats(1, "hard")
    assert asked.wait(LONGEST)
    if why == "left":
        connection.close()
        wait_until(lambda: not opened.gateway._jobs)
    go.set()
    if why == "full":
        assert connection.getresponse().status == 429
    wait_until(lambda: router._spending.count == 1 and not router._charges)
    assert router._spending._granted[-1] == 0
    cloud.go.set()
    for one in (connection, *waiting):
        one.close()


@pytest.mark.parametrize("blocked", [False, True])
def test_models_close_after_routers(gate: Opens, monkeypatch: pytest.MonkeyPatch, blocked: bool) -> None:
    asked, go, order = threading.Event(), threading.Event(), list[str]()

    class Waits(Words):
        def score(self, query: Query) -> float:
            asked.set()
            assert go.wait(LONGEST)
            order.append("decided")
            return 0.0

    class Closes(Says):
        def close(self) -> None:
            order.append("closed")

    opened = gate(side("small", Closes("from the edge")), side("large", Says("from the cloud")), Waits())
    (connection,) = opened.chats(1, "easy")
    assert asked.wait(LONGEST)
    if blocked:
        monkeypatch.setattr("ianvs_specdec.gateway.gateway.ROUTER_SECONDS", 0.1)
    else:
        threading.Timer(0.2, go.set).start()
    opened.end()
    assert order[0] == ("closed" if blocked else "decided")
    go.set()
    connection.close()


@pytest.mark.parametrize("where", ["edge", "cloud", "router"])
def test_disconnected_client_cancels_all_sides(gate: Opens, where: str) -> None:
    opened, edge, cloud = pair(gate, CascadeRouter("mean_probability", 0.5) if where == "router" else None)
    name, busy, text = ("cloud", cloud, "a hard one") if where == "cloud" else ("edge", edge, "easy")
    busy.go.clear()
    (connection,) = opened.chats(1, text)
    wait_until(lambda: len(busy.asked) == 1)
    connection.close()
    wait_until(lambda: opened.metrics()[f"in_flight.{name}"] == 0)
    found = opened.metrics()
    assert found["gateway_requests_total.disconnected"] == found[f"requests_total.disconnected.{name}"] == 1
    busy.go.set()
    assert opened.says("easy") == "from the edge"


def test_shutdown_ends_all_requests(gate: Opens) -> None:
    opened, edge, _ = pair(gate, CascadeRouter("mean_probability", 0.5))
    edge.go.clear()
    waiting = opened.chats(20, "easy")
    wait_until(lambda: len(opened.gateway._jobs) == 20 and len(edge.asked) == 8)
    opened.server.should_exit = True
    told = [connection.getresponse() for connection in waiting]
    assert {(one.status, json.loads(one.read())["error"]["code"]) for one in told} == {(503, "shutting_down")}
    for connection in waiting:
        connection.close()
