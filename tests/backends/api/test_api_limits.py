"""Rate and concurrency limits, and selection of endpoints, with a simulated clock."""

from __future__ import annotations

import threading
import time

import pytest

from ianvs_specdec.backends.api.endpoints import FAILURES_TO_REST, Endpoint, Endpoints
from ianvs_specdec.backends.api.session import Places, Rate

A, B = (Endpoint(f"http://{name}/v1", "NO_KEY", "m", weight) for name, weight in (("a", 1.0), ("b", 3.0)))


def test_rate_spreads_requests() -> None:
    rate = Rate(120)
    # What a second brings may come at once after a silence, then every half second one.
    assert [rate.reserve(1, 100.0) for _ in range(6)] == [100.0, 100.0, 100.0, 100.5, 101.0, 101.5]
    rate.give_back(2)
    assert rate.reserve(1, 100.0) == 101.0
    assert rate.reserve(1, 200.0) == 200.0
    rate.give_back(1 - 9)
    assert rate.reserve(1, 200.0) == 204.0 - 1.0 + 0.5, "more than was reserved is paid later"
    assert [Rate(None).reserve(10**9, 5.0) for _ in range(3)] == [5.0] * 3


def test_places_are_given_in_order_of_arrival() -> None:
    places, came = Places(1), []
    assert places.take(0.0)

    def come(name: int) -> None:
        if places.take(60.0):
            came.append(name)

    threads = [threading.Thread(target=come, args=(name,)) for name in range(3)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(places._waiting) < number:
            time.sleep(0.001)
    for number, thread in enumerate(threads, 1):
        places.give_back()
        assert not places.take(0.0), "whoever comes back at once overtakes none that waits"
        thread.join(60.0)
        assert came == list(range(number))
    places.give_back()
    assert places.take(0.0), "who no longer waits gets none"


def fail(endpoints: Endpoints, *, begun: float, ended: float) -> None:
    """A request to A fails."""
    assert endpoints.choose(begun, B)[0] == A
    endpoints.failed(A)
    endpoints.leave(A, ended)


@pytest.fixture
def resting() -> Endpoints:
    """A rests from 10.0 to 11.0."""
    endpoints = Endpoints([A, B])
    for _ in range(FAILURES_TO_REST):
        fail(endpoints, begun=10.0, ended=10.0)
    return endpoints


def test_a_failing_endpoint_rests_longer_each_time(resting: Endpoints) -> None:
    assert resting.choose(10.9, B)[0] == B
    for begun, again in ((11.0, 13.0), (13.0, 17.0)):
        fail(resting, begun=begun, ended=begun)
        assert resting.choose(again - 0.1, B)[0] == B
    assert not resting.other_than(B, 16.9)
    assert resting.other_than(B, 17.0)
    resting.succeeded(A)
    assert [resting.choose(16.0, B)[0] for _ in range(2)] == [A, A]


def test_one_request_at_a_time_probes_an_endpoint_after_its_rest(resting: Endpoints) -> None:
    assert [resting.choose(now, B)[0] for now in (11.0, 12.0, 60.0)] == [A, B, B]
    resting.leave(A, 60.0)
    assert [resting.choose(now, B)[0] for now in (61.9, 62.0)] == [B, A], "its rest begins when the probe has ended"


def test_concurrent_failures_cause_one_rest() -> None:
    endpoints = Endpoints([A, B])
    for _ in range(4 * FAILURES_TO_REST):
        assert endpoints.choose(10.0, B)[0] == A
    for _ in range(4 * FAILURES_TO_REST):
        endpoints.failed(A)
        endpoints.leave(A, 10.0)
    assert endpoints.choose(11.0, B)[0] == A


def test_busy_and_refusing_endpoints_rest() -> None:
    endpoints, now = Endpoints([A, B]), time.perf_counter()
    endpoints.busy(B, now + 30.0)
    assert [endpoints.choose(now)[0] for _ in range(4)] == [A] * 4
    endpoints.busy(A, now + 20.0)
    assert endpoints.choose(now) == (None, now + 20.0)
    assert endpoints.refused(A, "no such key")
    assert endpoints.choose(now + 59)[0] == B
    assert not endpoints.refused(B, "no such model")
    assert endpoints.choose(now + 59) == (None, float("inf"))
    assert endpoints.reasons() == "http://a/v1: no such key; http://b/v1: no such model"
    assert endpoints.choose(now + 75)[0] is not None
