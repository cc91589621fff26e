"""The embedded benchmark: an invented world, generated from one seed, the same on every machine.

Sets: knowledge (multiple choice), knowledge-train (more of the same, to train routers), router-train and router-check
(training and test set of the shipped router), drift (a stream that changes in the middle) with drift-train (the
training set before it), and open-ended (two turns in MT-Bench's categories, with reference answers).
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from collections.abc import Callable

from ianvs_specdec.benchmarks.files import Row, positive
from ianvs_specdec.benchmarks.source import Inputs, Source
from ianvs_specdec.benchmarks.world import dialogues, drift, facts, outcomes, questions
from ianvs_specdec.common.errors import UserError

NAME = "world"

SOURCE = Source(home="generated", parts={})

CATEGORIES = {subject: frozenset({subject}) for subject in (*questions.SUBJECTS, *dialogues.CATEGORIES)}

TEST_PER_SUBJECT, TRAIN_PER_SUBJECT, PER_CATEGORY = 32, 64, 6


def _knowledge(items: list[questions.WorldQuestion], prefix: str = "") -> list[Row]:
    """``prefix``: of the ids, to distinguish them from other sets."""
    rows, counts = [], Counter[str]()
    for item in items:
        counts[item.subject] += 1
        name = f"{prefix}{item.subject}-{counts[item.subject]:03d}"
        query = {"turns": [item.prompt], "id": name, "group": item.subject, "scorer": "choice"}
        rows.append({"question": query, "answer": item.letter})
    return rows


def _open_ended(found: list[dialogues.Dialogue]) -> list[Row]:
    rows = []
    for index, dialogue in enumerate(found):
        name = f"{dialogue.category}-{index % PER_CATEGORY + 1:02d}"
        query = {"turns": list(dialogue.turns), "id": name, "group": dialogue.category, "scorer": "text"}
        rows.append({"question": query, "answer": {"references": list(dialogue.answers)}})
    return rows


@functools.cache
def knowledge() -> list[questions.WorldQuestion]:
    """The test set. The models' training text, generated during training in other wordings, has none of it."""
    return questions.test_items(facts.build(), TEST_PER_SUBJECT, "test")


def knowledge_train(per_subject: int = TRAIN_PER_SUBJECT, seed: int = 0) -> list[questions.WorldQuestion]:
    """Up to ``per_subject`` further questions of each subject, to train routers; none is in ``knowledge``. A larger set
    of the same seed begins with the same questions."""
    known = set(map(questions.question_of, knowledge()))
    name = f"train-{seed}" if seed else "train"
    train: dict[str, list[questions.WorldQuestion]] = {subject: [] for subject in questions.SUBJECTS}
    for item in questions.test_items(facts.build(), per_subject + TEST_PER_SUBJECT, name):
        if questions.question_of(item) not in known and len(train[item.subject]) < per_subject:
            train[item.subject].append(item)
    return [item for items in train.values() for item in items]


@functools.cache
def _drifting() -> tuple[list[questions.WorldQuestion], list[questions.WorldQuestion]]:
    return drift.divide(knowledge_train(drift.PER_SUBJECT, drift.SEED))


def _known() -> list[questions.WorldQuestion]:
    return [*knowledge(), *knowledge_train()]


TRAIN = "knowledge-train"

SETS: dict[str, Callable[[], list[Row]]] = {
    "knowledge": lambda: _knowledge(knowledge()),
    TRAIN: lambda: _knowledge(knowledge_train()),
    "router-train": lambda: _knowledge(outcomes.to_learn_from(_known()), "more-"),
    "router-check": lambda: _knowledge(outcomes.to_judge(_known()), "check-"),
    "drift": lambda: _knowledge(_drifting()[1]),
    "drift-train": lambda: _knowledge(_drifting()[0]),
    "open-ended": lambda: _open_ended(dialogues.test_dialogues(facts.build(), PER_CATEGORY, "test")),
}
"""Name -> the rows of the set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=list(SETS), default="knowledge", help="which of its sets (default knowledge)")
    per_subject = f"{TRAIN}: questions of each subject (default {TRAIN_PER_SUBJECT}), or all there are"
    parser.add_argument("--per-subject", type=positive, metavar="N", help=per_subject)
    parser.add_argument("--seed", type=int, metavar="S", help=f"{TRAIN}: other seeds draw other questions (default 0)")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    if options.per_subject is None and options.seed is None:
        return SETS[options.set]()
    if options.set != TRAIN:
        raise UserError(f"--per-subject and --seed are for --set {TRAIN}: the set {options.set} is fixed")
    return _knowledge(knowledge_train(options.per_subject or TRAIN_PER_SUBJECT, options.seed or 0))
