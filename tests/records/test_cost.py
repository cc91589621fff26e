"""What answers cost, by the prices among a model's hyperparameters."""

from __future__ import annotations

import pytest

from ianvs_specdec.records.cost import cost


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ({}, None),
        ({"price_cached": 1.0}, None),
        ({"price_prompt": 2.0, "price_completion": 3.0}, 230.0),
        ({"price_prompt": 2.0, "price_completion": 3.0, "price_cached": 0.5}, 170.0),
        ({"price_prompt": 2.0, "price_cached": 0.0}, 120.0),
    ],
)
def test_prices_are_per_million_tokens(prices, expected):
    found = cost(prices, 100_000_000, 10_000_000, cached_tokens=40_000_000)
    assert found == (None if expected is None else pytest.approx(expected))
