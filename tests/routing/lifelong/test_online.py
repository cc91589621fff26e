"""The texts that the online learner reads, and when more is explored."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.online import BUCKETS, grams_of
from ianvs_specdec.routing.lifelong.learning import Exploration


@pytest.mark.parametrize("text", ["", " ", "a", "你好吗" * 3, "x" * 100_000, "\ud800 lone"])
def test_texts_of_any_length_and_kind_have_grams(text: str) -> None:
    grams = grams_of(Query((text,)))
    assert grams.shape == (BUCKETS,)
    assert np.isfinite(grams).all()


def test_a_group_whose_answers_have_changed_is_explored_more_until_that_is_known() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 400)
    exploration, shares = Exploration(0.05), []
    for residual in (*noise[:100] + 0.3, *noise[100:] - 0.4):
        exploration.observe("g", 0, residual)
        shares.append(exploration.of("g", 0))
    assert shares[99] == shares[399] == 0.05 < shares[119]
    assert exploration.of("another", 0) == pytest.approx(0.3)
