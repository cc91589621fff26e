"""Places, rates, the budget for repetitions, and which endpoint is asked next."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.api.endpoints import FAILURES_TO_REST, Endpoint, Endpoints
from ianvs_specdec.backends.api.limits import FREE_REPEATS, Budget, Places, Rate
from ianvs_specdec.backends.api.session import Call
from ianvs_specdec.common.errors import AnswerError, UserError

SOON, LATE = 0.05, 60.0


def test_places_are_given_in_the_order_of_coming() -> None:
    places = Places(2)
    assert places.take(time.perf_counter())
    assert places.take(time.perf_counter())
    order: list[int] = []
    threads = []
    for number in range(5):

        def wait(number: int = number) -> None:
            assert places.take(time.perf_counter() + LATE)
            order.append(number)
            places.give_back()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        while len(places._waiting) <= number:
            time.sleep(0.001)
    places.give_back()
    for thread in threads:
        thread.join(LATE)
    assert order == sorted(order)
    assert places.take(time.perf_counter())
    assert not places.take(time.perf_counter() + SOON)
    places.give_back()
    assert places.take(time.perf_counter()), "who gave up waiting holds no place"


def test_places_without_a_number_are_endless() -> None:
    places = Places(None)
    assert all(places.take(0.0) for _ in range(1000))
    places.give_back()


def test_a_rate_spreads_requests() -> None:
    rate = Rate(120)
    # What a second brings may come at once after a silence, then every half second one.
    assert [rate.reserve(1, 100.0) for _ in range(6)] == [100.0, 100.0, 100.0, 100.5, 101.0, 101.5]
    rate.give_back(2)
    assert rate.reserve(1, 100.0) == 101.0
    assert rate.reserve(1, 200.0) == 200.0
    assert [Rate(None).reserve(10**9, 5.0) for _ in range(3)] == [5.0] * 3


def test_more_than_was_reserved_is_paid_later() -> None:
    rate = Rate(600)
    rate.reserve(20, 10.0)
    rate.give_back(20 - 50)
    assert rate.reserve(1, 10.0) == pytest.approx(10.0 - 1 + 5)


def test_the_budget_is_a_share_of_the_requests() -> None:
    budget = Budget(0.2)
    assert [budget.permits() for _ in range(FREE_REPEATS + 1)] == [True] * FREE_REPEATS + [False]
    for _ in range(10):
        budget.begin()
    assert [budget.permits() for _ in range(3)] == [True, True, False]


A, B = (Endpoint(f"http://{name}/v1", "NO_KEY", "m", weight) for name, weight in (("a", 1.0), ("b", 3.0)))


def test_endpoints_are_asked_by_weight_and_by_how_busy_they_are() -> None:
    endpoints = Endpoints([A, B])
    chosen = [endpoints.choose(0.0, None)[0] for _ in range(8)]
    assert (chosen.count(A), chosen.count(B)) == (2, 6)
    for endpoint in chosen:
        if endpoint == B:
            endpoints.leave(B, None)
    assert endpoints.choose(0.0, None)[0] == B


def test_one_after_another_they_are_asked_by_weight_too() -> None:
    endpoints = Endpoints([A, B])
    chosen = []
    for _ in range(40):
        endpoint, _ = endpoints.choose(0.0, None)
        assert endpoint is not None
        endpoints.leave(endpoint, None)
        chosen.append(endpoint)
    assert chosen.count(B) == 30


def test_a_failed_request_goes_elsewhere() -> None:
    endpoints = Endpoints([A, B])
    assert endpoints.choose(0.0, None, B)[0] == A
    assert Endpoints([A]).choose(0.0, None, A)[0] == A


def test_an_endpoint_that_fails_rests_and_is_probed_by_one_request() -> None:
    endpoints = Endpoints([A, B])
    for _ in range(FAILURES_TO_REST):
        assert endpoints.choose(10.0, "earlier", B)[0] == A
        endpoints.failed(A, 10.0)
        endpoints.leave(A, "earlier")
    assert endpoints.choose(10.9, "probe", B)[0] == B
    assert not endpoints.other_than(B, 10.9)
    assert endpoints.other_than(B, 11.0)
    assert endpoints.choose(11.0, "probe", B)[0] == A
    assert endpoints.choose(11.0, "other", B)[0] == B
    endpoints.failed(A, 12.0)
    endpoints.leave(A, "probe")
    assert endpoints.choose(13.9, "probe", B)[0] == B, "it rests for twice as long"
    assert endpoints.choose(14.0, "probe", B)[0] == A
    endpoints.leave(A, "probe")
    assert endpoints.choose(14.0, "probe", B)[0] == A, "a probe that came to nothing is followed by another"
    endpoints.succeeded(A)
    endpoints.leave(A, "probe")
    assert [endpoints.choose(14.0, name, B)[0] for name in "xy"] == [A, A]


def test_requests_that_were_under_way_do_not_end_a_probe() -> None:
    endpoints = Endpoints([A, B])
    endpoints.choose(0.0, "slow", B)
    for _ in range(FAILURES_TO_REST):
        endpoints.failed(A, 0.0)
    assert endpoints.choose(1.0, "probe", B)[0] == A
    endpoints.leave(A, "slow")
    assert endpoints.choose(1.0, "third", B)[0] == B


def test_requests_that_were_under_way_do_not_prolong_a_rest() -> None:
    endpoints = Endpoints([A, B])
    for _ in range(3 * FAILURES_TO_REST):
        endpoints.failed(A, 0.0)
    assert endpoints.choose(1.0, "probe", B)[0] == A
    endpoints.failed(A, 1.0)
    endpoints.leave(A, "probe")
    assert endpoints.choose(3.0, "probe", B)[0] == A, "it rests for twice as long as before, and no longer"


def test_where_no_endpoint_is_well_they_are_asked_nevertheless() -> None:
    endpoints = Endpoints([A, B])
    for endpoint in (A, B):
        for _ in range(FAILURES_TO_REST):
            endpoints.failed(endpoint, 0.0)
    assert {endpoints.choose(0.0, None)[0] for _ in range(4)} == {A, B}


def test_a_success_begins_the_count_anew() -> None:
    endpoints = Endpoints([A])
    for _ in range(3):
        for _ in range(FAILURES_TO_REST - 1):
            endpoints.failed(A, 0.0)
        endpoints.succeeded(A)
    assert endpoints.choose(0.0, None)[0] == A


def test_a_busy_endpoint_is_left_alone_until_then() -> None:
    endpoints = Endpoints([A, B])
    endpoints.busy(B, 30.0)
    assert [endpoints.choose(0.0, None)[0] for _ in range(4)] == [A] * 4
    assert not endpoints.other_than(A, 0.0)
    assert endpoints.other_than(B, 0.0)
    endpoints.busy(A, 20.0)
    assert endpoints.choose(0.0, None) == (None, 20.0)
    endpoints.busy(A, 10.0)
    assert endpoints.choose(0.0, None) == (None, 20.0), "who asks for less later does not take that back"


def test_one_that_has_refused_is_never_asked_again() -> None:
    endpoints = Endpoints([A, B])
    assert endpoints.refused(A, "no such key")
    assert all(endpoints.choose(1e9, None, B)[0] == B for _ in range(3))
    assert not endpoints.refused(B, "no such model")
    assert endpoints.choose(1e9, None) == (None, float("inf"))
    assert endpoints.reasons() == "http://a/v1: no such key; http://b/v1: no such model"


def test_a_deadline_that_has_passed_is_not_blamed_on_a_rate_that_is_not_set() -> None:
    for rate in (None, 60):
        with APIBasedLLM("m", api_base_url="http://127.0.0.1:9/v1", api_rate=rate) as model:
            with pytest.raises(AnswerError, match="passed before its turn came") as caught:
                model._open().answer(Call({}, -1.0, 5, None))
            assert "rate limit" not in str(caught.value)
            assert [kind for _, kind in caught.value.failures] == ["deadline"]


def test_who_gives_up_before_its_turn_leaves_that_to_others() -> None:
    with APIBasedLLM("m", api_base_url="http://127.0.0.1:9/v1", api_rate=60, api_token_rate=60) as model:
        session = model._open()
        rates = (session._requests, session._tokens)
        for rate in rates:
            rate.reserve(1000, time.perf_counter())
        before = [rate.reserve(0, 0.0) for rate in rates]
        with pytest.raises(AnswerError, match="leaves no turn before the deadline"):
            session.answer(Call({}, LATE, 5, None))
        assert [rate.reserve(0, 0.0) for rate in rates] == pytest.approx(before)


@pytest.mark.parametrize("value", [1e300, 10**400, math.inf, math.nan, True, "9"])
def test_what_no_clock_can_wait_is_refused(value: Any) -> None:
    for name in ("api_timeout", "api_deadline", "api_rate", "api_token_rate", "api_retry_budget", "api_retries"):
        with pytest.raises(UserError, match=f"{name} must be a"):
            APIBasedLLM("m", **{name: value})
