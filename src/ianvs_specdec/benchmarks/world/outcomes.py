"""Training and test questions of the shipped router, of the kind of the knowledge set.

No training question has the text, without options, of one in knowledge, knowledge-train or the test questions; the
facts are the same. A training text may repeat with other options, on which a model's answer depends.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from ianvs_specdec.benchmarks.world import facts, skills
from ianvs_specdec.benchmarks.world.questions import SUBJECTS, TWO_STEP, WorldQuestion, draw, question_of, test_items

JUDGED_PER_SUBJECT = 110
LEARNED = {"geography": 2_100, "biography": 2_700, "biology": 1_500, "mineralogy": 1_200, TWO_STEP: 2_700}
"""By the number of facts of a subject."""
LEARNED_PER_SKILL = 1_000
FURTHER_SETS, FURTHER_PER_SUBJECT = 4, 90
"""Further training sets of the kind of the knowledge set."""
MAX_DRAWS = 81_000
"""Limit for skills with few distinct problems."""


def to_judge(known: Iterable[WorldQuestion]) -> list[WorldQuestion]:
    """Test questions, none with the text of a ``known`` one."""
    excluded = set(map(question_of, known))
    items = test_items(facts.build(), JUDGED_PER_SUBJECT, "fresh-eval")
    return [item for item in items if question_of(item) not in excluded]


def to_learn_from(known: list[WorldQuestion]) -> list[WorldQuestion]:
    """Training questions, none with the text of a ``known`` one or a test question."""
    excluded = {question_of(item) for item in (*known, *to_judge(known))}
    world, items = facts.build(), list[WorldQuestion]()
    for subject in SUBJECTS:
        rng = random.Random(f"pool/{subject}")
        found: dict[str, WorldQuestion] = {}
        for level in itertools.islice(itertools.cycle(skills.LEVELS), MAX_DRAWS):
            if len(found) == LEARNED.get(subject, LEARNED_PER_SKILL):
                break
            item = draw(rng, world, subject, level=level, test=True)
            if question_of(item) not in excluded:
                found.setdefault(item.prompt, item)
        items += found.values()
    further = (test_items(world, FURTHER_PER_SUBJECT, f"lifelong-{number}") for number in range(FURTHER_SETS))
    texts = {question_of(item): item for item in itertools.chain.from_iterable(further)}
    prompts = {item.prompt for item in items}
    return items + [item for text, item in texts.items() if text not in excluded and item.prompt not in prompts]
