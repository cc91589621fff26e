"""A stream of questions that changes in the middle: of skills, then of facts, then of skills again.

A router that was trained on questions of skills alone (``drift-train``) meets facts without preparation. In four rounds
of equal size the first and the last are skills. No question is asked twice, is trained on, or is one of the set
knowledge.
"""

from __future__ import annotations

import random

from ianvs_specdec.benchmarks.world import questions, skills

TRAINED, ROUND = 140, 150
PER_SUBJECT = TRAINED + 60
SEED = 2

Draw = list[questions.WorldQuestion]


def divide(drawn: Draw) -> tuple[Draw, Draw]:
    """The questions to train on, and the stream, out of ``PER_SUBJECT`` of each subject."""
    by_subject: dict[str, Draw] = {subject: [] for subject in questions.SUBJECTS}
    for item in drawn:
        by_subject[item.subject].append(item)
    before = [items for subject, items in by_subject.items() if subject in skills.SKILLS]
    after = [items for subject, items in by_subject.items() if subject not in skills.SKILLS]
    known = _shuffled([item for items in before for item in items[TRAINED:]], 2 * ROUND)
    new = _shuffled([item for items in after for item in items], 2 * ROUND)
    return [item for items in before for item in items[:TRAINED]], [*known[:ROUND], *new, *known[ROUND:]]


def _shuffled(items: Draw, count: int) -> Draw:
    return random.Random("drift").sample(items, count)
