"""The sums behind a budget, by hand: what a query will cost, and what the next ones can be granted."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.pricing import KEPT, Prices
from ianvs_specdec.routing.routers.spending import Spending

ONE, TWO = Query(("x" * 400,)), Query(("x" * 400, "y" * 400))


def test_what_a_query_costs_before_the_first_answer() -> None:
    prices = Prices(1.0, 2.0, 50)
    assert prices.expected(ONE) == pytest.approx((100 * 1.0 + 50 * 2.0) / 1e6)
    # The second prompt repeats the first turn and its answer.
    assert prices.expected(TWO) == pytest.approx((100 + 200 + 50 + 2 * 50 * 2.0) / 1e6)


def test_what_answers_teach_of_the_next_ones() -> None:
    prices = Prices(1.0, 2.0, 50)
    response = {"usage": {"prompt_tokens": 700, "completion_tokens": 200}, "turns": [{}, {}]}
    assert prices.learn(TWO, response) == pytest.approx((700 + 200 * 2.0) / 1e6)
    assert prices.learn(TWO, {**response, "cost": 0.5}) == 0.5
    assert prices.learn(TWO, {**response, "turns": []}) is None
    turns, tokens, characters, prompt = 4.0, 4.0 * 50, 16_000.0, 4_000.0
    for _ in range(2):
        turns, tokens = KEPT * turns + 2, KEPT * tokens + 200
        # Of the prompts 100 tokens are the first answer, not the user's.
        characters, prompt = KEPT * characters + 1200, KEPT * prompt + 600
    assert prices.expected(ONE) == pytest.approx((400 * prompt / characters + 2.0 * tokens / turns) / 1e6)


def test_what_the_next_queries_can_be_granted() -> None:
    spending = Spending(0.5, tolerance=0.1, window=10)
    # Half a window ahead: what is left, and the allowance of the four after the next one.
    assert spending._affordable() == pytest.approx((10 * 0.1 + 4 * 0.5) / 5)
    spending._left = 0.25
    assert spending._affordable() == pytest.approx((0.25 + 4 * 0.5) / 5)
    # Or what the window lets it: all but what stays in it.
    spending._left = 99.0
    assert spending._affordable() == pytest.approx((10 * 0.6 - 10 * 0.5 + 4 * 0.5) / 5)


def test_the_window_knows_what_was_granted_in_it_and_what_it_cost_in_the_end() -> None:
    random, spending = np.random.default_rng(0), Spending(0.3, tolerance=0.05, window=10)
    for number in range(1, 100):
        left, (granted, why) = spending._left, spending.request(float(random.random()), 1.0)
        assert granted is (why == "")
        gained = min(left + 0.3, 10 * 0.35) - left
        assert spending._left == pytest.approx(left + gained - granted)
        if granted:
            spending.correct(number, 0.25)
        spending.correct(number - 10, 0.5)
        assert spending._used == pytest.approx(sum(spending._granted)), "what has left the window is in it no more"


def test_no_more_is_saved_up_than_a_window_may_spend() -> None:
    spending = Spending(0.01, tolerance=0.01, window=200)
    for _ in range(4000):
        spending.request(-1.0, 1.0)
    granted = sum(spending.request(1.0, 1.0)[0] for _ in range(2000))
    assert granted <= 200 * 0.02 + 2000 * 0.01
