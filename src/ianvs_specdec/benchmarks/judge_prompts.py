"""Prompts of a judge, and its ratings: single-answer grading as in MT-Bench (Zheng et al. 2023).

Our prompts, ``specdec-judge-v1``, are next to this file. The official ones are read from the user's copy of FastChat's
``judge_prompts.jsonl``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ianvs_specdec.benchmarks.files import is_text, read_json_lines, required
from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message
from ianvs_specdec.records.identity import digest

SHIPPED = Path(__file__).with_name("specdec-judge-v1.jsonl")
"""Our prompts. A changed file needs a new name: ratings with other prompts are not comparable."""

FASTCHAT_FILE = "judge_prompts.jsonl"
"""The official prompts, in the folder ``fastchat/llm_judge/data`` of FastChat."""

OFFICIAL = "MT-Bench official (FastChat)"
OFFICIAL_DIGEST = "9b38884c5a2a309a1a9e665b418f0d7ecad1ce3b5cfe1f7ab85a3291de9daa7f"
"""Identifies the official prompts, whatever the file's name."""

REFERENCE_GROUPS = ("math", "reasoning", "coding")
"""Categories judged with reference answers."""

TURNS = 2
"""Maximum number of turns of a judged question."""

LOWEST, HIGHEST = 1, 10

FIRST, LAST = "the first marked (FastChat)", "the last marked"
"""Rules: which of the ratings with the clearest mark, such as [[8]], counts."""
_NUMBER = r"\*{0,3}(\d+(?:\.\d*)?)\*{0,3}(?![\dA-Za-z])(?!\s*/\s*(?!\[{0,2}10\b))"
_MARKS = {
    FIRST: (r"\[\[(\d+\.?\d*)\]\]", r"\[(\d+\.?\d*)\]"),
    LAST: (
        rf"\[\[\s*{_NUMBER}\s*(?:/\s*10\s*)?\]\](?:\s*(?:/|out\s+of)\s*\[\[10\]\])?",
        r"(?i:\b(?:ratings?|grade|score)\b|评分|得分|分数)(?:\s?\([^()\n]{0,20}\))?"
        rf"(?:\s(?:is|of)\b|\s-\s|\\boxed|[是为]|[^\w.,;?!-]){{0,12}}{_NUMBER}",
        rf"\b{_NUMBER}\s*(?:/|out\s+of)\s*10\b",
        rf"\A\W*{_NUMBER}\W*\Z",
    ),
}

_FIRST = {"question": "", "answer": ""}
_SECOND = {"question_1": "", "question_2": "", "answer_1": "", "answer_2": ""}
_REFERENCES = {"ref_answer_1": "", "ref_answer_2": ""}
_FIELDS = {
    "single-v1": _FIRST,
    "single-math-v1": _FIRST | _REFERENCES,
    "single-v1-multi-turn": _SECOND,
    "single-math-v1-multi-turn": _SECOND | _REFERENCES,
}
"""The fields of each prompt's template."""


@dataclass(frozen=True)
class JudgePrompt:
    """A system message ("" = none) and a template of the user message."""

    system: str
    template: str

    def messages(self, **fields: str) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.template.format(**fields)}]


@dataclass(frozen=True)
class PromptSet:
    """The four prompts of single-answer grading. ``digest``: SHA-256 of their texts; ``name``: for display."""

    prompts: Mapping[str, JudgePrompt]
    digest: str
    name: str

    @property
    def official(self) -> bool:
        """Whether ratings are comparable with published scores of MT-Bench."""
        return self.digest == OFFICIAL_DIGEST


def read_prompts(path: Path = SHIPPED) -> PromptSet:
    """The prompts in a file, without those of other grading modes. Raises UserError with file and line."""
    prompts = {}
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        name = required(row, "name", is_text, "a text", where)
        if name not in _FIELDS:
            continue
        prompt = JudgePrompt(
            *(required(row, key, is_text, "a text", where) for key in ("system_prompt", "prompt_template"))
        )
        try:
            prompt.messages(**_FIELDS[name])
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            fields = ", ".join(f"{{{field}}}" for field in _FIELDS[name])
            message = f"{where}: the template of {name} can hold only {fields} (other braces doubled): {error}"
            raise UserError(message) from error
        prompts[name] = prompt
    missing = ", ".join(name for name in _FIELDS if name not in prompts)
    if missing:
        raise UserError(f"{path}: no prompt of the name {missing}; expected a file like FastChat's {FASTCHAT_FILE}")
    value = digest({name: [prompt.system, prompt.template] for name, prompt in prompts.items()})
    other = path.stem if path == SHIPPED else f"{path.name} ({value[:12]})"
    return PromptSet(prompts, value, OFFICIAL if value == OFFICIAL_DIGEST else other)


def find_official(given: Sequence[Path]) -> Path | None:
    """FastChat's prompts below a given folder, next to a given file, or one folder above; None if absent."""
    for path in given:
        folder = (path if path.is_dir() else path.parent).resolve()
        below = sorted(folder.rglob(FASTCHAT_FILE)) if path.is_dir() else [folder / FASTCHAT_FILE]
        for found in (*below, folder.parent / FASTCHAT_FILE):
            if found.is_file():
                return found
    return None


def conversations(
    prompts: PromptSet, question: Sequence[str], answers: Sequence[str], references: Sequence[str], group: str
) -> list[list[Message]]:
    """The judge's conversation for each turn of a query; that of the second turn includes the first."""
    kind, given = "single", {}
    if group in REFERENCE_GROUPS:
        kind, given = "single-math", {f"ref_answer_{turn}": text for turn, text in enumerate(references, start=1)}
    answers = [without_reasoning(answer) for answer in answers]
    chats = [prompts.prompts[f"{kind}-v1"].messages(question=question[0], answer=answers[0], **given)]
    if len(question) == TURNS:
        given |= {f"question_{turn}": text for turn, text in enumerate(question, start=1)}
        given |= {f"answer_{turn}": text for turn, text in enumerate(answers, start=1)}
        chats.append(prompts.prompts[f"{kind}-v1-multi-turn"].messages(**given))
    return chats


def rule(judgment: str, official: bool) -> str:
    """The rule for the judgment: FastChat's for its official prompts, unless the judgment has reasoning."""
    return FIRST if official and without_reasoning(judgment) == judgment else LAST


def rating(judgment: str, official: bool = True) -> float | None:
    """The rating (1 to 10) in a judgment by its ``rule``, without reasoning; None if there is none."""
    counts, text = rule(judgment, official), without_reasoning(judgment)
    found = next((marked for mark in _MARKS[counts] if (marked := re.findall(mark, text))), ["0"])
    try:
        value = ast.literal_eval(found[0 if counts == FIRST else -1])
    except SyntaxError:
        return None
    return float(value) if LOWEST <= value <= HIGHEST else None
