"""What the shipped router learns from and is judged by is kept apart, from each other and from the test set."""

from __future__ import annotations

from collections import Counter

from ianvs_specdec.benchmarks.world import dataset, outcomes
from ianvs_specdec.benchmarks.world.questions import SUBJECTS, question_of


def test_no_question_to_judge_by_or_of_the_knowledge_sets_is_learned_from() -> None:
    known = [*dataset.knowledge(), *dataset.knowledge_train()]
    learned, judged = outcomes.to_learn_from(known), outcomes.to_judge(known)
    texts = set(map(question_of, learned))
    assert not texts & set(map(question_of, [*known, *judged]))
    assert not set(map(question_of, judged)) & set(map(question_of, known))
    assert len(judged) == len(set(map(question_of, judged))) > 1000
    prompts = [item.prompt for item in learned]
    assert len(prompts) == len(set(prompts)) > 7000
    counts = Counter(item.subject for item in learned)
    assert counts["biography"] > 900
    assert min(counts[subject] for subject in SUBJECTS) > 200
    assert len(texts) < len(prompts), "facts are asked again with other options"


def test_what_is_learned_from_together_has_no_id_twice() -> None:
    sets = [dataset.SETS[name]() for name in ("knowledge-train", "router-train", "router-check")]
    ids = [row["question"]["id"] for rows in sets for row in rows]
    assert len(ids) == len(set(ids))
