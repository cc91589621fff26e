"""The online learner: what it is saved as, the texts that it reads, and when more is explored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.online import BUCKETS, Experience, OnlineLearner, grams_of
from ianvs_specdec.routing.lifelong.lessons import Exploration

WORDS = ("rivers", "minerals", "logarithms", "kings")


def observations(count: int, seed: int = 0) -> list[Experience]:
    generator = np.random.default_rng(seed)
    made = []
    for index in range(count):
        word = WORDS[generator.integers(len(WORDS))]
        grams = grams_of(Query((f"What about {word} and number {index}?",)))
        score, worth, side = generator.random(), float(generator.random() < 0.6), int(generator.integers(2))
        made.append(Experience(grams, word[0], side, float(score), worth))
    return made


def with_states(made: list[Experience], seed: int = 0) -> list[Experience]:
    """All but each fifth have one."""
    found = np.random.default_rng(seed).normal(size=(len(made), 6)) + 1.0
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return [replace(one, state=found[place] if place % 5 else None) for place, one in enumerate(made)]


def test_queries_are_alike_by_their_hidden_states_too_which_are_saved() -> None:
    learner = OnlineLearner(with_states(observations(40)))
    loaded = OnlineLearner.of_arrays(learner.arrays())
    for probe in with_states(observations(5, seed=9), seed=9)[1:]:
        found = [one.solution.correction(probe.grams, probe.group, probe.state) for one in (learner, loaded)]
        assert found[0] == found[1] != learner.solution.correction(probe.grams, probe.group)


def test_what_is_saved_goes_on_as_if_it_had_not_been() -> None:
    first, second = observations(150)[:90], observations(150)[90:]
    learner = OnlineLearner(first)
    loaded = OnlineLearner.of_arrays(learner.arrays())
    for observation in second:
        learner.observe(observation)
        loaded.observe(observation)
    for probe in observations(10, seed=7):
        found = [one.solution.correction(probe.grams, probe.group) for one in (learner, loaded)]
        assert found[0] == pytest.approx(found[1], abs=1e-9)


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
