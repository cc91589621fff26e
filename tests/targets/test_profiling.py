"""A measured cost table: whatever it finds, it is a table, and the engine can be emulated with it."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.engine.costs import from_json
from ianvs_specdec.targets.profiling import _fit, profile
from ianvs_specdec.targets.registry import create_target
from tests.support.tiny import tiny_model


@pytest.fixture(scope="module")
def target():
    return create_target(tiny_model(max_position_embeddings=2048))


@pytest.mark.parametrize("method", ["autoregressive", "prompt_lookup"])
def test_a_profile_is_a_table(target, method):
    drafter = drafters.create(method)
    drafter.prepare(target)
    table = profile(target, drafter, 1.0, requests=(1, 2))
    assert from_json(table.to_json()) == table
    assert table.step.first[0] == 1
    assert table.step_seconds(1, 100, 1) > 0
    assert table.step_seconds(0, 0, 0, 64, 64) > 0
    assert (table.draft is None) == (method == "autoregressive")
    assert table.prompt_rows == target.prompt_rows


def test_what_a_request_a_row_and_a_token_cost_is_told_apart():
    def seconds(count, budget, prompt):
        rows = count * (1 + budget)
        return 0.005 + 0.0002 * rows + 0.0003 * count + 1e-7 * rows * prompt + 1e-8 * count * prompt

    points = [(count, budget, prompt) for count in (1, 2, 4, 8) for budget in (0, 1, 3, 7) for prompt in (64, 512)]
    step, request, attention = _fit({point: seconds(*point) for point in points})
    assert request == pytest.approx(0.0003, rel=1e-3)
    assert attention == pytest.approx(1e-7, rel=1e-3)
    assert step.at(16, 0) == pytest.approx(0.005 + 0.0002 * 16, rel=1e-3)
    assert step.at(16, 1000) - step.at(16, 0) == pytest.approx(1e-5, rel=1e-2)
