"""Prompts for a measurement, from any of the question files this project knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import read_json_lines, sample_evenly
from ianvs_specdec.common.errors import UserError

PROMPT_KEYS = ("prompt", "question", "query", "turns")
TASK_KEYS = ("category", "group", "subject", "task")


@dataclass(frozen=True)
class Request:
    """One prompt and its kind of task ("" where the file does not say)."""

    ids: list[int]
    task: str


def read_requests(path: Path, tokenizer: Any, limit: int, room: int) -> list[Request]:
    """At most ``limit`` prompts, spread evenly over the file, each of at most ``room`` tokens. Text goes through the
    chat template, where the tokenizer has one."""
    encoded = [
        Request(content if isinstance(content, list) else _encode(content, tokenizer), task)
        for content, task in read_rows(path)
    ]
    fitting = [request for request in encoded if 0 < len(request.ids) <= room]
    if not fitting:
        raise UserError(f"--prompts {path} has no prompt of at most {room} tokens")
    return sample_evenly(fitting, limit)


def read_rows(path: Path, limit: int | None = None) -> list[tuple[Any, str]]:
    """Prompt and task of ``limit`` lines, spread evenly over the file (all).

    A line holds ``prompt`` (token ids or text), ``question`` (text, or an object with ``turns``), ``query`` or
    ``turns``; of several turns the first is asked. The task is the line's ``category``, ``group``, ``subject`` or
    ``task``.
    """
    rows = []
    for number, row in read_json_lines(path):
        found = next((row[key] for key in PROMPT_KEYS if row.get(key)), None)
        asked = found if isinstance(found, dict) else {"turns": found}
        task = next((str(place[key]) for place in (row, asked) for key in TASK_KEYS if place.get(key)), "")
        prompt = asked.get("turns")
        if not prompt:
            raise UserError(f"{path}:{number}: no prompt, question, query or turns in this line")
        rows.append((prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], str) else prompt, task))
    return sample_evenly(rows, limit)


def _encode(text: str, tokenizer: Any) -> list[int]:
    if tokenizer is None:
        raise UserError("the prompts are text and the model folder has no tokenizer: give token ids")
    if not tokenizer.chat_template:
        return tokenizer(text).input_ids
    messages = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(chat, add_special_tokens=False).input_ids
