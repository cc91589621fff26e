"""The online learner: against plain Gaussian process regression, its memory's bounds, and what it is saved as."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.grams import GramRows, Weighting, grams_of, weigh
from ianvs_specdec.routing.learned.kinship import HALF
from ianvs_specdec.routing.learned.online import AGE, LEAST, Experience, OnlineLearner, squash, unsquash
from ianvs_specdec.routing.outcomes.recorded import Floats

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


def plain(learner: OnlineLearner, probe: Experience) -> float:
    """Posterior mean of cloud minus edge, written down from the definition."""
    idf, memory, strength = learner._idf, learner.memory, learner.strength

    def dense(observation: Experience) -> Floats:
        vector = np.zeros(len(idf))
        vector[observation.grams.buckets] = weigh(observation.grams, idf)
        return vector

    def mind(one: Experience, other: Experience) -> float:
        if one.state is None or other.state is None:
            return 0.0
        return float(0.5 ** ((1.0 - one.state @ other.state) / (1.0 - HALF)))

    texts = {id(observation): dense(observation) for observation in (*memory, probe)}

    def alike(one: Experience, other: Experience) -> float:
        same = float(one.group == other.group)
        read = strength.text * float(texts[id(one)] @ texts[id(other)]) + strength.state * mind(one, other)
        return strength.common + strength.group * same + read

    size = len(memory)
    covariance, gain, residual = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for i, one in enumerate(memory):
        expected = float(np.clip(learner.level.lines[one.side] @ [1.0, one.score], 0.02, 0.98))
        residual[i] = one.worth - expected
        for j, other in enumerate(memory):
            covariance[i, j] = alike(one, other) * (1.0 if one.side == other.side else strength.shared)
        covariance[i, i] += max(expected * (1 - expected), LEAST) * np.exp(min(learner.ages[i] / AGE, 6.0))
        sign = 1.0 if one.side == 1 else -1.0
        gain[i] = alike(probe, one) * sign * (1.0 - strength.shared)
    return float(gain @ np.linalg.solve(covariance, residual))


def test_it_is_gaussian_process_regression() -> None:
    learner = OnlineLearner()
    for observation in observations(40):
        learner.observe(observation)
    learner.solve()
    for probe in observations(5, seed=9):
        found = learner.solution.correction(probe.grams, probe.group) * learner.solution.slope
        assert found == pytest.approx(plain(learner, probe), abs=1e-9)


def with_states(made: list[Experience], seed: int = 0) -> list[Experience]:
    """All but each fifth have one."""
    found = np.random.default_rng(seed).normal(size=(len(made), 6)) + 1.0
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return [replace(one, state=found[place] if place % 5 else None) for place, one in enumerate(made)]


def test_it_is_that_with_hidden_states_too_and_is_saved_with_them() -> None:
    learner = OnlineLearner(capacity=30)
    for observation in with_states(observations(40)):
        learner.observe(observation)
    learner.solve()
    read = with_states(observations(5, seed=9), seed=9)
    for probe in read:
        found = learner.solution.correction(probe.grams, probe.group, probe.state) * learner.solution.slope
        assert found == pytest.approx(plain(learner, probe), abs=1e-9)
    loaded = OnlineLearner.of_arrays(learner.arrays())
    for probe in read[1:]:
        ours, theirs = (one.solution.correction(probe.grams, probe.group, probe.state) for one in (learner, loaded))
        assert theirs == pytest.approx(ours, abs=1e-5)


def test_the_same_feedback_in_the_same_order_teaches_the_same() -> None:
    learners = OnlineLearner(), OnlineLearner()
    for learner in learners:
        for observation in observations(100):
            learner.observe(observation)
    probe = observations(1, seed=5)[0]
    first, second = (learner.solution.correction(probe.grams, probe.group) for learner in learners)
    assert first == second


def test_the_memory_is_bounded_and_drops_what_newer_ones_have_replaced() -> None:
    learner = OnlineLearner(capacity=50)
    rare = replace(observations(1, seed=3)[0], group="rare", grams=grams_of(Query(("zyx wvu",))))
    learner.observe(rare)
    for observation in observations(200):
        learner.observe(observation)
    assert len(learner.memory) == len(learner.ages) == 50
    assert learner.memory[0] is rare
    last = observations(200)[-1]
    assert any(kept.grams.buckets.tolist() == last.grams.buckets.tolist() for kept in learner.memory)


def test_what_is_saved_goes_on_as_if_it_had_not_been() -> None:
    learner = OnlineLearner(capacity=60)
    first, second = observations(150)[:90], observations(150)[90:]
    for observation in first:
        learner.observe(observation)
    loaded = OnlineLearner.of_arrays(learner.arrays())
    for observation in second:
        learner.observe(observation)
        loaded.observe(observation)
    for probe in observations(10, seed=7):
        found = [one.solution.correction(probe.grams, probe.group) for one in (learner, loaded)]
        assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_the_level_follows_the_first_observations_and_is_then_fixed() -> None:
    learner = OnlineLearner()
    grams = grams_of(Query(("q",)))
    for index in range(learner.level.FIXED):
        learner.observe(Experience(grams, "", 0, index / 100, 0.3))
    line = learner.level.lines[0].copy()
    assert line @ [1.0, 0.5] == pytest.approx(0.3, abs=0.03)
    learner.observe(Experience(grams, "", 0, 0.5, 1.0))
    assert (learner.level.lines[0] == line).all()


@pytest.mark.parametrize("value", [-3.0, -0.1, 0.0, 0.01, 0.3, 0.99, 1.0, 1.4])
def test_squashed_numbers_are_between_0_and_1_in_the_same_order(value: float) -> None:
    assert 0 <= squash(value) < squash(value + 0.01) <= 1 or value < -0.2
    if -0.2 < value < 1.2:
        assert unsquash(squash(value)) == pytest.approx(value, abs=1e-6)
    if 0.02 < value < 0.98:
        assert squash(value) == value


def test_texts_of_any_length_and_kind_have_grams() -> None:
    for text in ("", " ", "a", "é", "你好吗" * 3, "x" * 100_000, "\ud800 lone", "\x00\n\t"):
        grams = grams_of(Query((text,)))
        assert (np.diff(grams.buckets) > 0).all()
        assert len(grams.buckets) == len(grams.counts) <= 20_000
    rows = [
        (grams_of(Query((text,))).buckets, np.ones(len(grams_of(Query((text,))).buckets))) for text in ("", "abcdef")
    ]
    assert GramRows(rows).similarities(*rows[1]).tolist() == [0.0, float(len(rows[1][0]))]


def test_rare_runs_of_letters_count_more() -> None:
    weighting, often, rarely = Weighting(), grams_of(Query(("often",))), grams_of(Query(("rarely",)))
    for _ in range(9):
        weighting.count(often)
    weighting.count(rarely)
    assert weighting.idf()[rarely.buckets].min() > weighting.idf()[often.buckets].max()
