"""Questions for the router that is shipped with the embedded models: to learn from, and to judge it by.

They are of the kind of the knowledge set. No question to learn from has the text, up to the options, of one of the
knowledge set, of knowledge-train, or of those to judge by; the facts that are asked about are the same. To learn from,
one text may come several times with other options: how a model does on a fact depends on them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from ianvs_specdec.benchmarks.world import facts, skills
from ianvs_specdec.benchmarks.world.questions import SUBJECTS, TWO_STEP, WorldQuestion, draw, question_of, test_items

JUDGED_PER_SUBJECT = 110
LEARNED = {"geography": 2_100, "biography": 2_700, "biology": 1_500, "mineralogy": 1_200, TWO_STEP: 2_700}
"""As there are more or fewer facts of a subject."""
LEARNED_PER_SKILL = 1_000
FURTHER_SETS, FURTHER_PER_SUBJECT = 4, 90
"""So many sets as the knowledge set are learned from, too."""
MOST_DRAWS = 81_000
"""Of some skills there are few different problems."""


def to_judge(known: Iterable[WorldQuestion]) -> list[WorldQuestion]:
    """Questions to judge a router by, none with the text of a ``known`` one."""
    asked = set(map(question_of, known))
    items = test_items(facts.build(), JUDGED_PER_SUBJECT, "fresh-eval")
    return [item for item in items if question_of(item) not in asked]


def to_learn_from(known: list[WorldQuestion]) -> list[WorldQuestion]:
    """Questions to learn from, none with the text of a ``known`` one or of one to judge by."""
    asked = {question_of(item) for item in (*known, *to_judge(known))}
    world, items = facts.build(), list[WorldQuestion]()
    for subject in SUBJECTS:
        rng = random.Random(f"pool/{subject}")
        found: dict[str, WorldQuestion] = {}
        for level in itertools.islice(itertools.cycle(skills.LEVELS), MOST_DRAWS):
            if len(found) == LEARNED.get(subject, LEARNED_PER_SKILL):
                break
            item = draw(rng, world, subject, level=level, test=True)
            if question_of(item) not in asked:
                found.setdefault(item.prompt, item)
        items += found.values()
    further = (test_items(world, FURTHER_PER_SUBJECT, f"lifelong-{number}") for number in range(FURTHER_SETS))
    texts = {question_of(item): item for item in itertools.chain.from_iterable(further)}
    prompts = {item.prompt for item in items}
    return items + [item for text, item in texts.items() if text not in asked and item.prompt not in prompts]
