"""BudgetRouter: the limits hold, the budget is spent, the highest scores are selected."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin import observers
from ianvs_specdec.routing.routers import budget
from ianvs_specdec.routing.routers.base import Decision, Router
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.latency import LatencyRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter

WINDOW, COUNT = 200, 3000


class Scripted(Router):
    """The score is the last word of the query."""

    concurrent = True

    def score(self, query: Query) -> float:
        return float(query.turns[0].split()[-1])


def row(score: float) -> dict[str, Any]:
    return {"query": f"scored {score:.6f}", "index": 0}


def route(router: Router, scores: Any) -> np.ndarray:
    return np.array([router.decide(row(float(score))).hard for score in scores])


def in_windows(sent: np.ndarray, window: int = WINDOW) -> np.ndarray:
    sums = np.cumsum(np.concatenate([[0], sent]))
    return np.asarray(sums[window:] - sums[:-window])


def orders() -> dict[str, np.ndarray]:
    random, numbers = np.random.default_rng(0), np.arange(COUNT)
    noise = 0.05 * random.random(COUNT)
    return {
        "random": random.random(COUNT),
        "easy first": np.where(numbers < COUNT // 2, 0.1, 0.9) + noise,
        "descending": 1 - numbers / COUNT,
        "constant": np.full(COUNT, 0.7),
        "two values": random.choice([0.2, 0.9], COUNT),
        "bursts": np.where(numbers % 300 < 60, 0.9, 0.1) + noise,
        "drift": np.clip(random.normal(0.2 + 0.6 * numbers / COUNT, 0.1), 0, 1),
    }


@pytest.mark.parametrize(
    ("order", "share"),
    [
        pytest.param(order, share, marks=() if share == 0.2 or order == "random" else pytest.mark.slow)
        for order in sorted(orders())
        for share in (0.05, 0.2, 0.8)
    ],
)
def test_the_share_holds_in_every_window_and_is_used(order: str, share: float) -> None:
    sent = route(BudgetRouter(Scripted(threshold=0), cloud_share=share), orders()[order])
    assert in_windows(sent).max() <= WINDOW * (share + 0.01) + 1e-9
    from_the_first = np.cumsum(sent) - share * np.arange(1, COUNT + 1)
    assert from_the_first.max() <= 0.01 * WINDOW + 1e-6
    # With descending scores the first queries are not among the best.
    assert sent.mean() >= (0.25 if order == "descending" else 0.6) * share
    if order in ("random", "constant", "two values", "drift"):
        assert sent.mean() >= share - 0.01


def test_the_share_holds_with_several_threads() -> None:
    def give_way(frame: Any, event: str, arg: Any) -> Any:
        """Yields to other threads at each line of the router."""
        time.sleep(0)
        return give_way if frame.f_code.co_filename == budget.__file__ else None

    router, before = BudgetRouter(Scripted(threshold=0), cloud_share=0.2), threading.gettrace()
    threading.settrace(give_way)
    try:
        with ThreadPoolExecutor(4) as threads:
            sent = sum(threads.map(lambda score: router(row(float(score))), orders()["random"][:400]))
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    assert 0.15 * 400 <= sent <= 0.2 * 400 + 2


def test_quantiles_of_a_trained_router_are_expected() -> None:
    class Trained(Scripted):
        report: ClassVar[dict[str, Any]] = {"score_quantiles": [number / 100 for number in range(101)]}

        @property
        def trained(self) -> Any:
            return self

    easy = [0.1, 0.2, 0.3, 0.35, 0.4, 0.42]
    assert route(BudgetRouter(Scripted(threshold=0), cloud_share=0.2), easy).any()
    assert not route(BudgetRouter(PrivacyRouter(Trained(threshold=0)), cloud_share=0.2), easy).any()


def test_reasons_include_the_overruled_ones() -> None:
    class Demanding(Scripted):
        def decide(self, data: Any) -> Decision:
            return Decision(0.1, True, "demanded")

    router = BudgetRouter(Demanding(), cloud_share=0.2)
    rows = [row(0.5) for _ in range(400)]
    sent = np.array([router(item) for item in rows])
    assert in_windows(sent).max() <= 42
    kept = next(item["routing"] for item, hard in zip(rows, sent, strict=True) if not hard)
    assert kept["reason"].startswith("budget: ")
    assert kept["overruled"] == ["demanded"]
    assert next(item["routing"] for item, hard in zip(rows, sent, strict=True) if hard)["reason"] == "demanded"


def test_nested_constraints() -> None:
    value = {
        "name": "BudgetRouter",
        "cloud_share": 0.2,
        "router": {"name": "LatencyRouter", "slo_ttft": 1.0, "router": {"name": "RandomRouter", "ratio": 1.0}},
    }
    PrivacyRouter.check_hyperparameters({"router": value})
    router = PrivacyRouter(value)
    assert isinstance(router.inner, BudgetRouter)
    assert isinstance(router.inner.inner, LatencyRouter)
    rows = [{"query": f"question {number}", "index": number} for number in range(600)]
    sent = np.array([router(item) for item in rows])
    assert in_windows(sent).max() <= 42
    assert sent.mean() > 0.19


# money

TOKENS = {"prompt_tokens": 100, "completion_tokens": 200}
PRICES: dict[str, Any] = {"price_prompt": 1.0, "price_completion": 2.0}
EACH = (100 * 1.0 + 200 * 2.0) / 1e6


def answered(router: BudgetRouter, scores: Any, usage: dict[str, int]) -> np.ndarray:
    """The cost of each query, with answers of the models."""
    cost = (usage["prompt_tokens"] * 1.0 + usage["completion_tokens"] * 2.0) / 1e6
    spent = []
    for score in scores:
        item = row(float(score))
        side = "cloud" if router(item) else "edge"
        observers.began(side, item)
        response = {"usage": usage, "turns": [{}], "cost": cost if side == "cloud" else None}
        observers.ended(side, item, response)
        spent.append(cost if side == "cloud" else 0.0)
    return np.array(spent)


def test_the_cost_limit_holds_for_longer_answers_than_expected() -> None:
    per_1000 = 0.25 * EACH * 1000
    router = BudgetRouter(Scripted(threshold=0), cost_per_1000=per_1000, completion_tokens=50, **PRICES)
    spent = answered(router, orders()["random"], TOKENS)
    assert in_windows(spent).max() <= 1.03 * per_1000 * WINDOW / 1000
    assert 0.92 * per_1000 <= spent.mean() * 1000 <= 1.001 * per_1000


def test_the_cost_limit_holds_for_dialogues_that_are_in_progress_together() -> None:
    # A token per character; the second prompt includes the first answer.
    usage = {"prompt_tokens": 100 + 200 + 400, "completion_tokens": 2 * 400}
    price = usage["prompt_tokens"] / 1e6
    router = BudgetRouter(Scripted(threshold=0), cost_per_1000=250 * price, price_prompt=1.0, completion_tokens=400)

    def dialogue() -> dict[str, Any]:
        return {"query": {"turns": ["字" * 96 + " 0.5", "字" * 100]}, "index": 0}

    for _ in range(1000):
        item = dialogue()
        side = "cloud" if router(item) else "edge"
        observers.began(side, item)
        observers.ended(side, item, {"usage": usage, "turns": [{}, {}], "cost": price if side == "cloud" else None})
    sent = sum(router(dialogue()) for _ in range(WINDOW))
    assert 0.7 * 0.25 * WINDOW < sent <= 0.26 * WINDOW


def test_cheaper_queries_of_equal_score_are_sent() -> None:
    router = BudgetRouter(Scripted(threshold=0), cost_per_1000=0.02, price_prompt=1.0, completion_tokens=1)
    rows = [{"query": "word " * (40 if number % 2 else 400) + "0.5", "index": 0} for number in range(600)]
    sent = np.array([router(item) for item in rows])
    assert sent[1::2].sum() > 10 * sent[::2].sum()


def test_overruled_decisions_correct_the_budget() -> None:
    router = BudgetRouter(Scripted(threshold=0), cloud_share=0.2)
    reached = 0
    for number, score in enumerate(orders()["random"][:1000]):
        item = row(float(score))
        # An outer constraint keeps every second query on the edge, which returns its budget.
        side = "cloud" if router(item) and number % 2 else "edge"
        observers.began(side, item)
        observers.ended(side, item, None)
        reached += side == "cloud"
    assert reached >= 0.15 * 1000
    router = BudgetRouter(Scripted(threshold=0), cloud_share=0.2)
    for score in orders()["random"][:100]:
        item = row(float(score))
        router(item)
        observers.began("cloud", item)
        observers.ended("cloud", item, None)
    assert not route(router, orders()["random"][:50]).any()


@pytest.mark.parametrize("share", [*(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 0.4, 0.6)), 0.2])
def test_the_highest_scores_are_sent(share: float) -> None:
    """At least 88 % of the gain of the optimal threshold over a random choice."""
    scores = np.random.default_rng(1).beta(1, 2, 10_000)
    sent = route(BudgetRouter(Scripted(threshold=0), cloud_share=share), scores)
    best, chance = np.sort(scores)[::-1][: sent.sum()].sum(), scores.mean() * sent.sum()
    assert scores[sent].sum() >= best - 0.12 * (best - chance)
