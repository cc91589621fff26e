"""Training data of draft heads: conversations of the embedded world, or the lines of a user's file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import read_json_lines
from ianvs_specdec.benchmarks.world import dialogues, facts, questions
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.training.sequences import text_or_ids, texts

HELD_OUT = 50
"""One in so many lines of the user's file is held out for evaluation."""


@dataclass(frozen=True)
class Conversation:
    """Turns and, if known, the expected answer to each, which saves generating it.

    ``prompt`` replaces a single turn, see ``Teacher.as_chats``; a ``text`` is read as it is, and the head learns all of
    it. One of the three is given. Results are reported by ``group``.
    """

    turns: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    prompt: str | tuple[int, ...] = ()
    text: str = ""
    group: str = "all"


def world_conversations(rng: random.Random) -> Iterator[Conversation]:
    """Endless conversations of the embedded world, three knowledge questions per open-ended dialogue.

    Half of the questions about facts choose entities uniformly instead of by fame, since the target's answers about
    little-known ones must also be predicted.
    """
    world, about_facts = facts.build(), (*questions.FACT_SUBJECTS, questions.TWO_STEP)
    while True:
        items = [questions.training_item(rng, world) for _ in range(2)]
        for item in (*items, questions.draw(rng, world, rng.choice(about_facts), test=False)):
            yield Conversation((item.prompt,), (item.completion,), group="knowledge")
        dialogue = dialogues.training_dialogue(rng, world)
        yield Conversation(dialogue.turns, dialogue.answers, group="open-ended")


def world_development(seed: int, per_subject: int = 12, per_category: int = 6) -> list[Conversation]:
    """New questions and dialogues in the wordings of the test sets, none of which is shipped."""
    world = facts.build()
    items = questions.test_items(world, per_subject, f"development/heads/{seed}")
    talks = dialogues.test_dialogues(world, per_category, f"development/heads/{seed}")
    return [
        *(Conversation((item.prompt,), (item.completion,), group="knowledge") for item in items),
        *(Conversation(talk.turns, talk.answers, group="open-ended") for talk in talks),
    ]


def read(path: Path) -> list[Conversation]:
    """The lines of a JSONL file: ``{"text": ...}``, ``{"turns": [...], "answers": [...]}`` (answers are optional) or
    ``{"prompt": "text" | [token ids]}``.

    Raises ``UserError`` with file and line for anything else.
    """
    found = [_conversation(row, f"{path}:{number}") for number, row in read_json_lines(path)]
    if not found:
        raise UserError(f"--data {path} holds no lines to train on", key="data")
    return found


def _conversation(row: dict[str, Any], where: str) -> Conversation:
    kinds = [key for key in ("text", "turns", "prompt") if row.get(key)]
    if kinds == ["text"] and isinstance(row["text"], str):
        return Conversation(text=row["text"])
    if kinds == ["prompt"]:
        prompt = text_or_ids(row["prompt"], "prompt", where)
        return Conversation(prompt=prompt if isinstance(prompt, str) else tuple(prompt))
    if kinds != ["turns"]:
        raise UserError(f'{where}: a line needs one of "text", "turns" and "prompt", not empty', key="data")
    turns, answers = texts(row, "turns", where), texts(row, "answers", where)
    if answers and len(answers) != len(turns):
        reason = f'"answers" must be a list with one text for each of the {len(turns)} turns'
        raise UserError(f"{where}: {reason}", key="data")
    return Conversation(tuple(turns), tuple(answers))
