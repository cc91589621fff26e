"""The lines of a journal: what each kind looks like, and what is read of it without parsing it.

There are six kinds, told apart by their first key. Keys that this version does not know are passed over:

``{"key": ..., "config": id, "prompt": hash, "run": id, "side": ..., "hardware": id, "time": ..., "answer": {...}}``
    one answer to one request, with its full trace. ``key`` is the SHA-256 of everything that determines the answer. A
    judge's has before ``answer`` the name of the ``prompts`` that asked for it, and by which ``rule`` it is read.
``{"failed": key, "run": id, "side": ..., "time": ..., "error": ..., "failures": [[seconds, what], ...]}``
    a request that got no answer, and why. It is asked again by the next run.
``{"routed": key, "run": id, "seconds": ...}``
    the time that a router took for a decision, by the router, the query and the decision.
``{"probed": key, "run": id, "hardware": id, "seconds": ..., "issued": ..., "prompt_tokens": ..., "states": text}``
    a prompt that was read to look at its hidden states, pooled: ``key`` is the SHA-256 of everything that determines
    them, ``states`` float16 numbers in base64, ``issued`` and ``seconds`` when that began and how long it took.
``{"config_id": id, "model": name, "value": {...}}``
    a configuration: everything that determines answers except the messages. Written once, before its first answer.
``{"hardware_id": id, "value": {...}}``
    the machine on which timings were taken. Written once, before its first answer.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ianvs_specdec.answers.configuration import Configuration, prompt_id
from ianvs_specdec.answers.shapes import are_attempts, check_answer, is_count, is_time
from ianvs_specdec.errors import AnswerError
from ianvs_specdec.types import Completion, Message

FILE_NAME = "journal.jsonl"

_ANSWER = re.compile(
    rb'\{"key":"([0-9a-f]{64})","config":"([0-9a-f]{16})","prompt":"([0-9a-f]{16})","run":"([ !#-\[\]-~]*)",'
    rb'"side":"[^"\\]*","hardware":"([0-9a-f]{16})",'
)
_FAILURE = re.compile(rb'\{"failed":"[0-9a-f]{64}",')
_ROUTED = re.compile(rb'\{"routed":"([0-9a-f]{64})","run":"([ !#-\[\]-~]*)","seconds":([0-9]{1,9}\.[0-9]{1,20})\}\s*')
_PROBED = re.compile(rb'\{"probed":"([0-9a-f]{64})","run":"([ !#-\[\]-~]*)",')
_RECORD = re.compile(rb'\{"(config|hardware)_id":"([0-9a-f]{16})",')
STATE_BYTES = 2
"""Of one number in float16."""
RECORDS = ("config", "hardware")
_ID, _KEY = "[0-9a-f]{16}", "[0-9a-f]{64}"
_HEAD = (_KEY, _ID, _ID, ".*", _ID)
"""What the parts of a ``Head`` look like."""


@dataclass(frozen=True)
class Prefill:
    """A prompt that was read to look at its hidden states: ``states``, little-endian float16 [layers,
    2 * hidden]; when that was asked for (``issued``, Unix seconds) and how many ``seconds`` it took.
    """

    states: bytes
    prompt_tokens: int
    seconds: float
    issued: float


class LineHead(NamedTuple):
    """What a line of an answer begins with."""

    key: str
    config: str
    prompt: str
    run: str
    hardware: str


def head_of(line: bytes) -> LineHead | None:
    """The beginning of a whole line that holds an answer; None of any other line."""
    match = _ANSWER.match(line)
    if match and line.rstrip().endswith(b"}}}"):
        return LineHead(*(group.decode() for group in match.groups()))
    # Not as this version writes it: with a key of a newer one, or written anew by another program.
    record = _object_in(line) if b'"key"' in line else None
    if record is None or not isinstance(record.get("answer"), dict):
        return None
    found = [record.get(name) for name in LineHead._fields]
    texts = [value for value in found if isinstance(value, str)]
    if len(texts) < len(found) or not all(map(re.fullmatch, _HEAD, texts)):
        return None
    return LineHead(*texts)


def record_of(line: bytes) -> tuple[str, str] | None:
    """Kind (``config`` or ``hardware``) and id of a whole line that describes one; None of any other line."""
    match = _RECORD.match(line)
    if match and line.rstrip().endswith(b"}"):
        return match.group(1).decode(), match.group(2).decode()
    record = record_in(line) if b'_id"' in line else None
    for kind in RECORDS if record else ():
        name = record.get(f"{kind}_id") if record else None
        if isinstance(name, str) and re.fullmatch(_ID, name):
            return kind, name
    return None


def is_failure(line: bytes) -> bool:
    """Whether this is a whole line of a request without an answer."""
    if _FAILURE.match(line) is not None and line.rstrip().endswith(b"}"):
        return True
    return b'"failed"' in line and failure_in(line) is not None


def answer_in(line: bytes) -> tuple[Completion, str] | None:
    """The answer and the id of its hardware; None where anything of either is not what it should be."""
    record = _object_in(line)
    try:
        if record is None or not isinstance(record["hardware"], str):
            return None
        check_answer(record["answer"])
        return Completion.from_json(record["answer"]), record["hardware"]
    except (ValueError, TypeError, KeyError):
        return None


def record_in(line: bytes) -> dict[str, Any] | None:
    """A configuration or a machine as its line has it, with an object as ``value``; None where it is damaged."""
    record = _object_in(line)
    return record if record is not None and isinstance(record.get("value"), dict) else None


def failure_in(line: bytes) -> tuple[str, str, list[tuple[float, str]]] | None:
    """The side, the error and the attempts of a request without an answer; None where the line is damaged."""
    record = _object_in(line) or {}
    side, error, attempts = record.get("side"), record.get("error"), record.get("failures")
    if not isinstance(side, str) or not isinstance(error, str) or not are_attempts(attempts):
        return None
    return side, error, attempts


def _object_in(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def routed_of(line: bytes) -> tuple[str, str, float] | None:
    """Key, run and seconds of a whole line with a router's time; None of any other line."""
    match = _ROUTED.fullmatch(line)
    if match:
        return match[1].decode(), match[2].decode(), float(match[3])
    record = _object_in(line) if b'"routed"' in line else None
    key, run, seconds = (record.get(name) for name in ("routed", "run", "seconds")) if record else (None,) * 3
    if not isinstance(key, str) or not re.fullmatch(_KEY, key) or not isinstance(run, str) or not is_time(seconds):
        return None
    return key, run, float(seconds)


def probed_of(line: bytes) -> tuple[str, str] | None:
    """Key and run of a whole line with a prefill; None of any other line."""
    match = _PROBED.match(line)
    if match and line.rstrip().endswith(b"}"):
        return match[1].decode(), match[2].decode()
    record = _object_in(line) if b'"probed"' in line else None
    key, run = (record.get("probed"), record.get("run")) if record else (None, None)
    if not isinstance(key, str) or not re.fullmatch(_KEY, key) or not isinstance(run, str):
        return None
    return key, run


def prefill_in(line: bytes) -> tuple[Prefill, str] | None:
    """The prefill and the id of its hardware; None where anything of either is not what it should be."""
    record = _object_in(line) or {}
    tokens, seconds, issued, hardware = (record.get(n) for n in ("prompt_tokens", "seconds", "issued", "hardware"))
    try:
        states = base64.b64decode(record["states"], validate=True)
    except (ValueError, TypeError, KeyError):
        return None
    if (
        len(states) % STATE_BYTES
        or not is_count(tokens)
        or not is_time(seconds)
        or not is_time(issued)
        or not isinstance(hardware, str)
    ):
        return None
    return Prefill(states, tokens, seconds, issued), hardware


def answer_line(
    key: str,
    configuration: Configuration,
    messages: list[Message],
    completion: Completion,
    *,
    run: str,
    side: str,
    hardware: str,
    judged: Mapping[str, str] | None = None,
) -> bytes:
    return _line({
        "key": key,
        "config": configuration.id,
        "prompt": prompt_id(messages),
        "run": run,
        "side": side,
        "hardware": hardware,
        "time": round(time.time(), 3),
        **(judged or {}),
        "answer": completion.to_json(),
    })  # fmt: skip


def failure_line(key: str, error: AnswerError, *, run: str, side: str) -> bytes:
    return _line({
        "failed": key,
        "run": run,
        "side": side,
        "time": round(time.time(), 3),
        "error": str(error),
        "failures": [[round(seconds, 3), what] for seconds, what in error.failures],
    })  # fmt: skip


def routed_line(key: str, seconds: float, *, run: str) -> bytes:
    return _line({"routed": key, "run": run, "seconds": seconds})


def probed_line(key: str, prefill: Prefill, *, run: str, hardware: str) -> bytes:
    return _line({
        "probed": key,
        "run": run,
        "hardware": hardware,
        "seconds": round(prefill.seconds, 7),
        "issued": round(prefill.issued, 6),
        "prompt_tokens": prefill.prompt_tokens,
        "states": base64.b64encode(prefill.states).decode(),
    })  # fmt: skip


def configuration_line(configuration: Configuration) -> bytes:
    return _line({"config_id": configuration.id, "model": configuration.model, "value": configuration.value})


def hardware_line(hardware_id: str, value: Mapping[str, Any]) -> bytes:
    return _line({"hardware_id": hardware_id, "value": value})


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
