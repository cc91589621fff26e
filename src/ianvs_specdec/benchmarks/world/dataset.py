"""The embedded benchmark: an invented world, generated from one seed, the same on every machine.

Sets: knowledge (four options, a letter), knowledge-train (more of the same, for what learns from outcomes),
router-train and router-check (what the shipped router learned from, and what it is judged by), drift (a
stream that changes in the middle) with drift-train (what a router knew before), and open-ended (two turns in MT-Bench's
categories, with reference answers).
"""

from __future__ import annotations

import argparse
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
    """``prefix`` tells the ids from those of sets that this one is used together with."""
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


def knowledge() -> list[questions.WorldQuestion]:
    """The questions that are asked of the models. The text that these learn from holds none of them: it is generated
    while they train, in other wordings.
    """
    return questions.test_items(facts.build(), TEST_PER_SUBJECT, "test")


def knowledge_train(per_subject: int = TRAIN_PER_SUBJECT, seed: int = 0) -> list[questions.WorldQuestion]:
    """Other questions of the same kind, for what learns from outcomes (routers): none of them is one of ``knowledge``.

    Of a subject that has not so many, all there are. With the same seed, more begin with the same ones.
    """
    asked = set(map(questions.question_of, knowledge()))
    name = f"train-{seed}" if seed else "train"
    train: dict[str, list[questions.WorldQuestion]] = {subject: [] for subject in questions.SUBJECTS}
    for item in questions.test_items(facts.build(), per_subject + TEST_PER_SUBJECT, name):
        if questions.question_of(item) not in asked and len(train[item.subject]) < per_subject:
            train[item.subject].append(item)
    return [item for items in train.values() for item in items]


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
    parser.add_argument(
        "--per-subject",
        type=positive,
        metavar="N",
        help=f"{TRAIN}: questions of each subject (default {TRAIN_PER_SUBJECT}), or all there are",
    )
    parser.add_argument("--seed", type=int, metavar="S", help=f"{TRAIN}: other seeds draw other questions (default 0)")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    if options.per_subject is None and options.seed is None:
        return SETS[options.set]()
    if options.set != TRAIN:
        raise UserError(f"--per-subject and --seed are for --set {TRAIN}: the set {options.set} is fixed")
    return _knowledge(knowledge_train(options.per_subject or TRAIN_PER_SUBJECT, options.seed or 0))
