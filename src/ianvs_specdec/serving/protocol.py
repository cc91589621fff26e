"""What all answers of the OpenAI protocol have in common: events of a stream, token usage, what the engine counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.api.stream import TRUNCATED
from ianvs_specdec.common.types import Completion

LINE_ENDS = "\x85\u2028\u2029"


def served_name(model: str) -> str:
    """The name under which a model is served unless another is given: its path's last part, or its name on the hub."""
    return Path(model).resolve().name if Path(model).exists() else model


def usage(completions: Iterable[Completion], per_prompt: int = 1) -> dict[str, int]:
    """Of an answer with these choices, ``per_prompt`` to each prompt: each prompt counts once."""
    given = list(completions)
    read = sum(completion.prompt_tokens for completion in given[::per_prompt])
    put_out = sum(completion.completion_tokens for completion in given)
    return {"prompt_tokens": read, "completion_tokens": put_out, "total_tokens": read + put_out}


def cut(completion: Completion) -> dict[str, int]:
    """How many tokens of the prompt were left out; nothing where an API behind this server is silent."""
    return {} if completion.truncated is None else {TRUNCATED: completion.truncated}


def details(completion: Completion) -> dict[str, Any]:
    """What the engine counted, of one choice: see ``types.Trace``."""
    trace = completion.trace.to_json()
    return {
        "steps": trace["steps"],
        "token_ids": completion.token_ids,
        "near_ties": trace["near_ties"],
        "truncated": completion.truncated,
        **{name: trace[name] for name in ("confidence", "characters", "letters") if name in trace},
    }


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # Lines end at line feeds here, but some clients take every character that Unicode calls a line end for one.
    for character in LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n".encode()
