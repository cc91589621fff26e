"""A stream of questions with a distribution shift: skills, then facts, then skills again.

A router trained on skills alone (``drift-train``) meets facts unprepared. Of four rounds of equal size the first and
the last are skills. No question repeats, is in the training set, or in the set knowledge.
"""

from __future__ import annotations

import random

from ianvs_specdec.benchmarks.world import questions, skills

TRAINED, ROUND = 140, 150
PER_SUBJECT = TRAINED + 60
SEED = 2

Draw = list[questions.WorldQuestion]


def divide(drawn: Draw) -> tuple[Draw, Draw]:
    """Training set and stream, out of ``PER_SUBJECT`` questions of each subject."""
    by_subject: dict[str, Draw] = {subject: [] for subject in questions.SUBJECTS}
    for item in drawn:
        by_subject[item.subject].append(item)
    before = [items for subject, items in by_subject.items() if subject in skills.SKILLS]
    after = [items for subject, items in by_subject.items() if subject not in skills.SKILLS]
    known = random.Random("drift").sample([item for items in before for item in items[TRAINED:]], 2 * ROUND)
    new = random.Random("drift").sample([item for items in after for item in items], 2 * ROUND)
    return [item for items in before for item in items[:TRAINED]], [*known[:ROUND], *new, *known[ROUND:]]
