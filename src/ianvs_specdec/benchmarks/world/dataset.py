"""The embedded benchmark: an invented world, generated from one seed, the same on every machine.

Writes OUT/knowledge/train.jsonl and OUT/knowledge/test.jsonl (four options, a letter) and OUT/open-ended/test.jsonl
(two turns).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import write_rows
from ianvs_specdec.benchmarks.world import dialogues, facts, questions

TEST_PER_SUBJECT, TRAIN_PER_SUBJECT, PER_CATEGORY = 32, 64, 6
TRAIN_FILE, TEST_FILE, OPEN_ENDED_FILE = "knowledge/train.jsonl", "knowledge/test.jsonl", "open-ended/test.jsonl"


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


def write(out: Path) -> dict[str, int]:
    """Write the three files below ``out`` and return their numbers of rows.

    ``knowledge/test.jsonl`` is asked of the models. ``knowledge/train.jsonl`` has other questions of the same kind, for
    what learns from outcomes (routers). ``open-ended/test.jsonl`` holds two-turn dialogues with references. The models'
    own training text is not among them: it is generated while they train, in other wordings.
    """
    world = facts.build()
    test = questions.test_items(world, TEST_PER_SUBJECT, "test")
    asked = {item.prompt.split("\nA. ")[0] for item in test}
    candidates = questions.test_items(world, TRAIN_PER_SUBJECT + TEST_PER_SUBJECT, "train")
    train: dict[str, list[questions.Item]] = {subject: [] for subject in questions.SUBJECTS}
    for item in candidates:
        if item.prompt.split("\nA. ")[0] not in asked and len(train[item.subject]) < TRAIN_PER_SUBJECT:
            train[item.subject].append(item)
    files = {
        TRAIN_FILE: _knowledge([item for items in train.values() for item in items]),
        TEST_FILE: _knowledge(test),
        OPEN_ENDED_FILE: _open_ended(dialogues.test_dialogues(world, PER_CATEGORY, "test")),
    }
    for name, rows in files.items():
        write_rows(out / name, rows)
    return {name: len(rows) for name, rows in files.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder to write")


def run(options: argparse.Namespace) -> int:
    for name, size in write(options.out).items():
        print(f"{options.out / name}: {size} questions")
    return 0
