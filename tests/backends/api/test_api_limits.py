"""Rates, the budget for repetitions, and which endpoint is asked next, on a clock of the test's own."""

from __future__ import annotations

import threading
import time

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.api.endpoints import FAILURES_TO_REST, Endpoint, Endpoints
from ianvs_specdec.backends.api.limits import FREE_REPEATS, Budget, Places, Rate
from ianvs_specdec.backends.api.session import Call
from ianvs_specdec.common.errors import AnswerError

A, B = (Endpoint(f"http://{name}/v1", "NO_KEY", "m", weight) for name, weight in (("a", 1.0), ("b", 3.0)))


def test_a_rate_spreads_requests() -> None:
    rate = Rate(120)
    # What a second brings may come at once after a silence, then every half second one.
    assert [rate.reserve(1, 100.0) for _ in range(6)] == [100.0, 100.0, 100.0, 100.5, 101.0, 101.5]
    rate.give_back(2)
    assert rate.reserve(1, 100.0) == 101.0
    assert rate.reserve(1, 200.0) == 200.0
    rate.give_back(1 - 9)
    assert rate.reserve(1, 200.0) == 204.0 - 1.0 + 0.5, "more than was reserved is paid later"
    assert [Rate(None).reserve(10**9, 5.0) for _ in range(3)] == [5.0] * 3


def test_a_place_is_given_in_the_order_of_coming() -> None:
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


def test_the_budget_is_a_share_of_the_requests() -> None:
    budget = Budget(0.2)
    assert [budget.permits() for _ in range(FREE_REPEATS + 1)] == [True] * FREE_REPEATS + [False]
    for _ in range(10):
        budget.begin()
    assert [budget.permits() for _ in range(3)] == [True, True, False]


def test_endpoints_are_asked_by_weight_and_load() -> None:
    endpoints = Endpoints([A, B])
    chosen = [endpoints.choose(0.0)[0] for _ in range(8)]
    assert (chosen.count(A), chosen.count(B)) == (2, 6)
    for _ in range(6):
        endpoints.leave(B, 0.0)
    assert endpoints.choose(0.0)[0] == B
    assert Endpoints([A, B]).choose(0.0, B)[0] == A, "a failed request goes elsewhere"
    assert Endpoints([A]).choose(0.0, A)[0] == A


def fail(endpoints: Endpoints, *, begun: float, ended: float) -> None:
    """Of a request that goes to A only if it is well."""
    assert endpoints.choose(begun, B)[0] == A
    endpoints.failed(A)
    endpoints.leave(A, ended)


def resting() -> Endpoints:
    """A rests from 10.0 to 11.0."""
    endpoints = Endpoints([A, B])
    for _ in range(FAILURES_TO_REST):
        fail(endpoints, begun=10.0, ended=10.0)
    return endpoints


def test_an_endpoint_that_fails_rests() -> None:
    endpoints = Endpoints([A, B])
    for _ in range(3):
        for _ in range(FAILURES_TO_REST - 1):
            fail(endpoints, begun=10.0, ended=10.0)
        endpoints.succeeded(A)
    endpoints = resting()
    assert endpoints.choose(10.9, B)[0] == B
    for begun, again in ((11.0, 13.0), (13.0, 17.0)):
        fail(endpoints, begun=begun, ended=begun)
        assert endpoints.choose(again - 0.1, B)[0] == B
    assert not endpoints.other_than(B, 16.9)
    assert endpoints.other_than(B, 17.0)
    endpoints.succeeded(A)
    assert [endpoints.choose(16.0, B)[0] for _ in range(2)] == [A, A]


def test_while_a_probe_hangs_no_other_request_follows_it() -> None:
    endpoints = resting()
    assert [endpoints.choose(now, B)[0] for now in (11.0, 12.0, 60.0)] == [A, B, B]
    assert not endpoints.other_than(B, 60.0)
    endpoints.leave(A, 60.0)
    assert [endpoints.choose(now, B)[0] for now in (61.9, 62.0)] == [B, A], "its rest begins when the probe has ended"


def test_requests_that_fail_together_are_one_reason_to_rest() -> None:
    endpoints = Endpoints([A, B])
    for _ in range(4 * FAILURES_TO_REST):
        assert endpoints.choose(10.0, B)[0] == A
    for _ in range(4 * FAILURES_TO_REST):
        endpoints.failed(A)
        endpoints.leave(A, 10.0)
    assert endpoints.choose(11.0, B)[0] == A


def test_where_no_endpoint_is_well_they_are_asked() -> None:
    endpoints = resting()
    for _ in range(FAILURES_TO_REST):
        endpoints.failed(B)
    assert {endpoints.choose(10.0)[0] for _ in range(8)} == {A, B}


def test_a_busy_endpoint_is_left_alone_until_then() -> None:
    endpoints = Endpoints([A, B])
    endpoints.busy(B, 30.0)
    assert [endpoints.choose(0.0)[0] for _ in range(4)] == [A] * 4
    assert not endpoints.other_than(A, 0.0)
    endpoints.busy(A, 20.0)
    endpoints.busy(A, 10.0)
    assert endpoints.choose(0.0) == (None, 20.0)


def test_an_endpoint_that_refused_is_not_asked_for_a_minute() -> None:
    endpoints, now = Endpoints([A, B]), time.perf_counter()
    assert endpoints.refused(A, "no such key")
    assert all(endpoints.choose(now + 59, B)[0] == B for _ in range(3))
    assert not endpoints.refused(B, "no such model")
    assert endpoints.choose(now + 59) == (None, float("inf"))
    assert endpoints.reasons() == "http://a/v1: no such key; http://b/v1: no such model"
    assert endpoints.choose(now + 75)[0] is not None


@pytest.mark.parametrize("rate", [None, 60])
def test_a_passed_deadline_is_not_blamed_on_the_rate(rate: float | None) -> None:
    with APIBasedLLM("m", api_base_url="http://127.0.0.1:9/v1", api_rate=rate) as model:
        with pytest.raises(AnswerError, match="passed before its turn came") as caught:
            model._open().answer(Call({}, -1.0, 5, None))
        assert [kind for _, kind in caught.value.failures] == ["deadline"]


def test_a_request_that_gives_up_leaves_its_turn_to_others() -> None:
    with APIBasedLLM("m", api_base_url="http://127.0.0.1:9/v1", api_rate=60, api_token_rate=60) as model:
        session = model._open()
        rates = (session._requests, session._tokens)
        for rate in rates:
            rate.reserve(1000, time.perf_counter())
        before = [rate.reserve(0, 0.0) for rate in rates]
        with pytest.raises(AnswerError, match="leaves no turn before the deadline"):
            session.answer(Call({}, 60.0, 5, None))
        assert [rate.reserve(0, 0.0) for rate in rates] == pytest.approx(before)
