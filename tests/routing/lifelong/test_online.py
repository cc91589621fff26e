"""The online learner: against plain Gaussian process regression, its memory's bounds, and what it is saved as."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.online import BUCKETS, Experience, OnlineLearner, grams_of, squash, unsquash
from ianvs_specdec.routing.lifelong.lessons import BOOST, FEW, Exploration

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


def test_an_answer_that_is_worth_less_than_promised_sends_queries_like_it_to_the_other_model() -> None:
    query = grams_of(Query(("What about rivers?",)))
    for side, sign in ((0, -1), (1, 1)):
        for worth in (0.0, 1.0):
            learner = OnlineLearner([Experience(query, "r", side, 0.5, worth)] * 20)
            found = learner.solution.correction(query, "r")
            assert np.sign(found) == (sign if worth else -sign)
            assert abs(found) > 5 * abs(learner.solution.correction(grams_of(Query(("zyx wvu",))), "other"))


def test_older_observations_count_less() -> None:
    query = grams_of(Query(("What about rivers?",)))
    wrong, right = ([Experience(query, "r", 0, 0.5, worth)] * 60 for worth in (0.0, 1.0))
    assert OnlineLearner([*wrong, *right]).solution.correction(query, "r") < 0
    assert OnlineLearner([*right, *wrong]).solution.correction(query, "r") > 0


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


@pytest.mark.parametrize("value", [-3.0, -0.1, 0.0, 0.01, 0.3, 0.99, 1.0, 1.4])
def test_squashed_numbers_are_between_0_and_1_in_the_same_order(value: float) -> None:
    assert 0 <= squash(value) < squash(value + 0.01) <= 1 or value < -0.2
    if -0.2 < value < 1.2:
        assert unsquash(squash(value)) == pytest.approx(value, abs=1e-6)
    if 0.02 < value < 0.98:
        assert squash(value) == value


@pytest.mark.parametrize("text", ["", " ", "a", "é", "你好吗" * 3, "x" * 100_000, "\ud800 lone", "\x00\n\t"])
def test_texts_of_any_length_and_kind_have_grams(text: str) -> None:
    grams = grams_of(Query((text,)))
    assert grams.shape == (BUCKETS,)
    assert np.isfinite(grams).all()


def taught(residuals: list[float], group: str = "g", side: int = 0) -> Exploration:
    exploration = Exploration(0.05)
    for residual in residuals:
        exploration.observe(group, side, residual)
    return exploration


def test_a_model_is_explored_more_where_little_is_known_of_it() -> None:
    boosted = pytest.approx(0.05 * BOOST)
    assert taught([]).of("g", 0) == taught([0.1] * (FEW - 1)).of("g", 0) == boosted
    known = taught([0.1] * FEW)
    assert known.of("g", 0) == 0.05
    assert known.of("g", 1) == known.of("another", 0) == boosted


@pytest.mark.parametrize("side", [0, 1])
def test_a_group_whose_answers_have_changed_is_explored_more_until_that_is_known(side: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 400)
    before, after, later = noise[:100] + 0.3, noise[100:120] - 0.4, noise[120:] - 0.4
    assert taught(before.tolist(), side=side).of("g", side) == 0.05
    assert taught([*before, *after], side=side).of("g", side) > 0.05
    assert taught([*before, *after, *later], side=side).of("g", side) == 0.05


def test_right_and_wrong_at_random_are_no_change() -> None:
    answers = np.random.default_rng(1).random(2000) < 0.7
    exploration, boosted = Exploration(0.05), 0
    for right in answers:
        exploration.observe("", 0, float(right) - 0.7)
        boosted += exploration.of("", 0) > 0.05
    assert boosted < 0.1 * len(answers)
