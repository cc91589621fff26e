"""What drafts cost, learned from samples: by requests, levels, tokens, and what a drafter had to catch up with."""

from __future__ import annotations

import random

import pytest

from ianvs_specdec.lengths.drafting import DraftCosts
from ianvs_specdec.lengths.sizes import OUTLIER


def drafting(rng, asked):
    depth, nodes, behind = rng.randint(1, 8), rng.randint(asked, 8 * asked), rng.choice([0, 0, 0, 100])
    return asked + rng.randint(0, 4), asked, depth, nodes, behind


def cost(requests, asked, depth, nodes, behind):
    return 0.05 + 0.02 * requests + 0.03 * asked + 0.1 * depth + 0.01 * nodes + 0.0005 * behind


def test_drafts_cost_what_they_did_by_requests_levels_tokens_and_what_was_caught_up_with():
    learned, rng = DraftCosts(), random.Random(0)
    for _ in range(600):
        terms = drafting(rng, rng.randint(0, 6)) if rng.random() < 0.8 else (rng.randint(0, 9), 0, 0, 0, 0)
        learned.add(*terms, cost(*terms) * rng.lognormvariate(0, 0.02))
    for terms in ((1, 1, 4, 4, 0), (6, 6, 2, 12, 0), (5, 3, 8, 20, 100), (0, 0, 0, 0, 0), (9, 0, 0, 0, 0)):
        assert float(learned.at(*terms)) == pytest.approx(cost(*terms), rel=0.1)
    assert learned.without(9) == float(learned.at(9, 0, 0, 0, 0))


def test_one_draft_among_many_requests_is_not_dear_for_what_the_others_take():
    learned = DraftCosts()
    for _ in range(30):
        learned.add(60, 0, 0, 0, 0, 1.2)
    learned.add(60, 1, 2, 2, 0, 1.3)
    assert float(learned.at(60, 60, 2, 120, 0)) < 2 * 60 * 0.1


def test_one_slow_draft_is_not_believed_and_what_is_not_asked_stays_known():
    learned, terms = DraftCosts(), (1, 1, 4, 4, 0)
    for _ in range(50):
        learned.add(*terms, 0.5)
    learned.add(*terms, 500.0)
    assert float(learned.at(*terms)) < 0.5 * (1 + OUTLIER)
    for _ in range(500):
        learned.add(1, 0, 0, 0, 0, 1e-3)
    assert float(learned.at(*terms)) == pytest.approx(0.5, rel=0.2)


def test_drafts_that_take_longer_from_now_on_are_known_after_a_few():
    learned, terms = DraftCosts(), (1, 1, 4, 4, 0)
    for number in range(400):
        learned.add(*terms, 0.5 * (1.01 if number % 2 else 0.99))
    for _ in range(8):
        learned.add(*terms, 0.8)
    assert float(learned.at(*terms)) == pytest.approx(0.8, rel=0.15)


def test_no_term_of_a_draft_is_below_nothing():
    learned, rng = DraftCosts(), random.Random(0)
    for _ in range(300):
        depth = rng.randint(1, 8)
        learned.add(1, 1, depth, depth, 0, 1.0 - 0.1 * depth)
    assert min(learned.weights) >= 0.0


def test_where_much_is_to_be_caught_up_with_only_that_is_learned():
    """After a pause a draft is slow at first: its levels are not."""
    learned = DraftCosts()
    for _ in range(50):
        learned.add(1, 1, 4, 4, 5, 0.5)
    *others, late = learned.weights
    for _ in range(5):
        learned.add(1, 1, 1, 1, 100, 3.0)
    assert learned.weights[:-1] == others
    assert learned.weights[-1] > late


def test_drafts_that_had_much_to_read_leave_hope_for_what_others_take():
    learned = DraftCosts()
    for _ in range(30):
        learned.add(4, 4, 2, 8, 8.0, 0.4)
    known = learned.at(4, 4, 2, 8, 8.0)
    assert learned.at(4, 4, 2, 8, 8.0, hoped=True) == pytest.approx(known, rel=0.5)
    for _ in range(200):
        learned.add(1, 1, 1, 1, 100.0, 0.3)
    assert learned.at(4, 4, 8, 32, 8.0, hoped=True) < 0.5 * learned.at(4, 4, 8, 32, 8.0)
