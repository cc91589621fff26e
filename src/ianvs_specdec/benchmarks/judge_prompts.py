"""What MT-Bench's judge is asked, and how its rating is read: single-answer grading (Zheng et al. 2023, FastChat's
``llm_judge``).

The prompts are data: four of the eight in FastChat's ``judge_prompts.jsonl`` are shipped beside this file (see NOTICE),
others can be named in their place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.benchmarks.files import is_text, read_json_lines, required
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import Message

SHIPPED = Path(__file__).with_name("judge_prompts.jsonl")

REFERENCE_GROUPS = ("math", "reasoning", "coding")
"""The categories that are judged against reference answers."""

TURNS = 2
"""Turns that there are prompts for."""

LOWEST, HIGHEST = 1, 10

_RATING = re.compile(r"\[\[(\d+\.?\d*)\]\]")
_BACKUP = re.compile(r"\[(\d+\.?\d*)\]")

_FIRST = {"question": "", "answer": ""}
_SECOND = {"question_1": "", "question_2": "", "answer_1": "", "answer_2": ""}
_REFERENCES = {"ref_answer_1": "", "ref_answer_2": ""}
_FIELDS = {
    "single-v1": _FIRST,
    "single-math-v1": _FIRST | _REFERENCES,
    "single-v1-multi-turn": _SECOND,
    "single-math-v1-multi-turn": _SECOND | _REFERENCES,
}
"""Per prompt what can stand in its template."""


@dataclass(frozen=True)
class Prompt:
    """A system message ("" = none), and a template of the user's message."""

    system: str
    template: str

    def messages(self, **fields: str) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.template.format(**fields)}]


def read_prompts(path: Path = SHIPPED) -> dict[str, Prompt]:
    """The four prompts of single-answer grading by name. Raises UserError with file and line; other prompts in the file
    are ignored.
    """
    prompts = {}
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        name = required(row, "name", is_text, "a text", where)
        if name not in _FIELDS:
            continue
        prompt = Prompt(*(required(row, key, is_text, "a text", where) for key in ("system_prompt", "prompt_template")))
        try:
            prompt.messages(**_FIELDS[name])
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            fields = ", ".join(f"{{{field}}}" for field in _FIELDS[name])
            message = f"{where}: the template of {name} can hold only {fields} (other braces doubled): {error}"
            raise UserError(message) from error
        prompts[name] = prompt
    missing = ", ".join(name for name in _FIELDS if name not in prompts)
    if missing:
        raise UserError(f"{path}: no prompt of the name {missing}; expected a file like FastChat's judge_prompts.jsonl")
    return prompts


def needs_references(group: str) -> bool:
    """Whether answers to questions of this category are judged against reference answers."""
    return group in REFERENCE_GROUPS


def conversations(
    prompts: Mapping[str, Prompt],
    question: Sequence[str],
    answers: Sequence[str],
    references: Sequence[str],
    group: str,
) -> list[list[Message]]:
    """What the judge is asked about a query's answers, turn by turn: of the second turn it sees the first one, too.

    ``question``, ``answers`` and, where the group needs them, ``references`` have one text for each turn.
    """
    kind, given = "single", {}
    if needs_references(group):
        kind, given = "single-math", {f"ref_answer_{turn}": text for turn, text in enumerate(references, start=1)}
    asked = [prompts[f"{kind}-v1"].messages(question=question[0], answer=answers[0], **given)]
    if len(question) == TURNS:
        given |= {f"question_{turn}": text for turn, text in enumerate(question, start=1)}
        given |= {f"answer_{turn}": text for turn, text in enumerate(answers, start=1)}
        asked.append(prompts[f"{kind}-v1-multi-turn"].messages(**given))
    return asked


def rating(judgment: str) -> float | None:
    """The rating that a judgment gives: the first number in double brackets, else the first in single ones, as the
    official evaluation reads it. None where there is none, it is not a number, or not one from 1 to 10.
    """
    found = _RATING.search(judgment) or _BACKUP.search(judgment)
    if found is None:
        return None
    try:
        value = ast.literal_eval(found.group(1))
    except SyntaxError:
        return None
    return float(value) if LOWEST <= value <= HIGHEST else None
