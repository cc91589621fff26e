"""Prompts for a measurement, from any of the question files this project knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

TASK_KEYS = ("category", "group", "subject", "task")


@dataclass(frozen=True)
class Request:
    """One prompt and the kind of task it is ("" where the file does not say)."""

    ids: list[int]
    task: str


def read_prompts(path: Path, tokenizer: Any, limit: int, room: int) -> list[list[int]]:
    """The token ids alone of ``read_requests``."""
    return [request.ids for request in read_requests(path, tokenizer, limit, room)]


def read_requests(path: Path, tokenizer: Any, limit: int, room: int) -> list[Request]:
    """At most ``limit`` prompts, spread evenly over the file, each of at most ``room`` tokens.

    A line holds ``prompt`` (token ids or text), ``question`` (text, or an object with ``turns``), ``query`` or
    ``turns``; of several turns the first is asked. Text goes through the chat template, where the tokenizer has one.
    The task is the line's ``category``, ``group``, ``subject`` or ``task``.
    """
    encoded: list[Request] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--prompts {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            content = _content(row)
        except (ValueError, LookupError, AttributeError) as error:
            raise UserError(f"{path}:{number}: no prompt, question, query or turns in this line") from error
        ids = content if isinstance(content, list) else _encode(content, tokenizer)
        if 0 < len(ids) <= room:
            encoded.append(Request(ids, _task(row)))
    if not encoded:
        raise UserError(f"--prompts {path} has no prompt of at most {room} tokens")
    count = min(limit, len(encoded))
    return [encoded[i * len(encoded) // count] for i in range(count)]


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
