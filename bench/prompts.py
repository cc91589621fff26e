"""Prompts for a measurement, from any of the question files this project knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import spread
from ianvs_specdec.common.errors import UserError

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
    return spread(fitting, limit)


def read_rows(path: Path, limit: int | None = None) -> list[tuple[Any, str]]:
    """Prompt and task of ``limit`` lines, spread evenly over the file (all).

    A line holds ``prompt`` (token ids or text), ``question`` (text, or an object with ``turns``), ``query`` or
    ``turns``; of several turns the first is asked. The task is the line's ``category``, ``group``, ``subject`` or
    ``task``.
    """
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--prompts {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append((_content(row), _task(row)))
        except (ValueError, LookupError, AttributeError) as error:
            raise UserError(f"{path}:{number}: no prompt, question, query or turns in this line") from error
    return spread(rows, limit)


def _content(row: dict[str, Any]) -> str | list[int]:
    for key in ("prompt", "question", "query", "turns"):
        if key in row:
            value = row[key]["turns"] if isinstance(row[key], dict) else row[key]
            return value[0] if isinstance(value[0], str) and isinstance(value, list) else value
    raise LookupError


def _task(row: dict[str, Any]) -> str:
    question = row.get("question")
    places = [row, question] if isinstance(question, dict) else [row]
    return next((str(place[key]) for place in places for key in TASK_KEYS if place.get(key)), "")


def _encode(text: str, tokenizer: Any) -> list[int]:
    if tokenizer is None:
        raise UserError("the prompts are text and the model folder has no tokenizer: give token ids")
    if not tokenizer.chat_template:
        return tokenizer(text).input_ids
    messages = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(chat, add_special_tokens=False).input_ids
