"""The embedded benchmark: an invented world, generated from one seed, the same on every machine.

Sets: knowledge (four options, a letter), knowledge-train (more of the same, for what learns from outcomes) and
open-ended (two turns in MT-Bench's categories, with reference answers).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ianvs_specdec.benchmarks.files import Row
from ianvs_specdec.benchmarks.source import Inputs, Source
from ianvs_specdec.benchmarks.world import dialogues, facts, questions

NAME = "world"

SOURCE = Source(home="generated", parts={})

CATEGORIES = {subject: frozenset({subject}) for subject in (*questions.SUBJECTS, *dialogues.CATEGORIES)}

TEST_PER_SUBJECT, TRAIN_PER_SUBJECT, PER_CATEGORY = 32, 64, 6


def _knowledge(items: list[questions.Item]) -> list[dict[str, Any]]:
    rows, counts = [], dict.fromkeys(questions.SUBJECTS, 0)
    for item in items:
        counts[item.subject] += 1
        name = f"{item.subject}-{counts[item.subject]:03d}"
        query = {"turns": [item.prompt], "id": name, "group": item.subject, "scorer": "choice"}
        rows.append({"question": query, "answer": item.letter})
    return rows


def _open_ended(found: list[dialogues.Dialogue]) -> list[dict[str, Any]]:
    return [
        {
            "question": {
                "turns": list(dialogue.turns),
                "id": f"{dialogue.category}-{index % PER_CATEGORY + 1:02d}",
                "group": dialogue.category,
                "scorer": "text",
            },
            "answer": {"references": list(dialogue.answers)},
        }
        for index, dialogue in enumerate(found)
    ]


def knowledge() -> tuple[list[questions.Item], list[questions.Item]]:
    """The questions that are asked of the models, and others of the same kind, for what learns from outcomes (routers).

    The models' own training text is neither: it is generated while they train, in other wordings.
    """
    world = facts.build()
    test = questions.test_items(world, TEST_PER_SUBJECT, "test")
    asked = {item.prompt.split("\nA. ")[0] for item in test}
    candidates = questions.test_items(world, TRAIN_PER_SUBJECT + TEST_PER_SUBJECT, "train")
    train: dict[str, list[questions.Item]] = {subject: [] for subject in questions.SUBJECTS}
    for item in candidates:
        if item.prompt.split("\nA. ")[0] not in asked and len(train[item.subject]) < TRAIN_PER_SUBJECT:
            train[item.subject].append(item)
    return test, [item for items in train.values() for item in items]


SETS: dict[str, Callable[[], list[Row]]] = {
    "knowledge": lambda: _knowledge(knowledge()[0]),
    "knowledge-train": lambda: _knowledge(knowledge()[1]),
    "open-ended": lambda: _open_ended(dialogues.test_dialogues(facts.build(), PER_CATEGORY, "test")),
}
"""Name -> the rows of the set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=list(SETS), default="knowledge", help="which of its sets (default knowledge)")


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    return SETS[options.set]()
