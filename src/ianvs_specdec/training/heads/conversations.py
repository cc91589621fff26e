"""What draft heads are trained on: conversations of the embedded world, or the lines of the user's own file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.world import dialogues, facts, questions
from ianvs_specdec.common.errors import UserError

HELD_OUT = 50
"""Every how many lines of the user's file one is kept for measuring."""


@dataclass(frozen=True)
class Conversation:
    """Turns and, where known, an answer to each: what the target is expected to say, which saves generating it.

    ``prompt`` stands for a single turn, see ``Teacher.asked``; ``text`` is neither asked nor answered: the target reads
    it and the head learns all of it. One of the three is given. ``group`` is what results are reported by.
    """

    turns: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    prompt: str | tuple[int, ...] = ()
    text: str = ""
    group: str = "all"


def world_conversations(rng: random.Random) -> Iterator[Conversation]:
    """Training conversations of the embedded world without end, three knowledge questions to one open-ended dialogue.

    Half of the questions about facts ask for entities evenly instead of by fame: what the target says about those it
    hardly knows has to be foreseen, too.
    """
    world, about_facts = facts.build(), (*questions.FACT_SUBJECTS, questions.TWO_STEP)
    while True:
        items = [questions.training_item(rng, world) for _ in range(2)]
        for item in (*items, questions.draw(rng, world, rng.choice(about_facts), test=False)):
            yield Conversation((item.prompt,), (item.completion,), group="knowledge")
        dialogue = dialogues.training_dialogue(rng, world)
        yield Conversation(dialogue.turns, dialogue.answers, group="open-ended")


def world_development(seed: int, per_subject: int = 12, per_category: int = 6) -> list[Conversation]:
    """Fresh questions and dialogues in the wordings of the test sets, none of which is shipped."""
    world = facts.build()
    items = questions.test_items(world, per_subject, f"development/heads/{seed}")
    talks = dialogues.test_dialogues(world, per_category, f"development/heads/{seed}")
    return [
        *(Conversation((item.prompt,), (item.completion,), group="knowledge") for item in items),
        *(Conversation(talk.turns, talk.answers, group="open-ended") for talk in talks),
    ]


def read(path: Path) -> list[Conversation]:
    """The lines of a JSONL file: ``{"text": ...}``, ``{"turns": [...], "answers": [...]}`` (answers may be missing) or
    ``{"prompt": "text" | [token ids]}``.

    Raises ``UserError`` with file and line for anything else.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --data {path}: {error}", key="data") from error
    found = [_conversation(line, f"{path}:{n}") for n, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise UserError(f"--data {path} holds no lines to train on", key="data")
    return found


def _conversation(line: str, where: str) -> Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})", key="data") from error
    kinds = [key for key in ("text", "turns", "prompt") if isinstance(row, dict) and key in row]
    if len(kinds) != 1:
        raise UserError(f'{where}: a line needs one of "text", "turns" and "prompt"', key="data")
    value = row[kinds[0]]
    if kinds[0] == "text":
        if not (isinstance(value, str) and value):
            raise UserError(f'{where}: "text" must be a text that is not empty', key="data")
        return Conversation(text=value)
    if kinds[0] == "prompt":
        if isinstance(value, str) and value:
            return Conversation(prompt=value)
        if isinstance(value, list) and value and all(type(i) is int and i >= 0 for i in value):
            return Conversation(prompt=tuple(value))
        raise UserError(f'{where}: "prompt" must be a text or a list of token ids', key="data")
    turns, answers = _texts(value), _texts(row.get("answers", []))
    if not turns:
        raise UserError(f'{where}: "turns" must be a list of texts', key="data")
    if answers is None or (answers and len(answers) != len(turns)):
        raise UserError(
            f'{where}: "answers" must be a list with one text for each of the {len(turns)} turns', key="data"
        )
    return Conversation(turns, answers)


def _texts(value: Any) -> tuple[str, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else None
