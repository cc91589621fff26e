"""Parts of the OpenAI protocol that all endpoints share: errors, events, usage, counts of speculation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.api.stream import TRUNCATED
from ianvs_specdec.common.types import Completion


class Refusal(Exception):
    """A request that gets no answer: the HTTP status, and the error object that the protocol has for it.

    ``outcome`` is what the request counts as; see ``metrics``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        outcome: str = "rejected",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.outcome, self.headers = status, outcome, dict(headers or {})
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def check_model(asked: str, models: Sequence[str]) -> None:
    """Raise Refusal for a name that is none of the ``models``, which may have more names than they list."""
    if asked not in models:
        message = f"the model {asked[:256]!r} does not exist here; this server has {', '.join(map(repr, models))}"
        raise Refusal(404, message, param="model", code="model_not_found")


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


def speculation(completion: Completion) -> dict[str, Any]:
    """``metrics.speculative_decoding`` of an answer; empty where nothing was drafted. ``acceptance_histogram``
    is how many steps accepted 0, 1, 2 ... tokens.
    """
    steps = [step for step in completion.trace.steps if step.drafted]
    if not steps:
        return {}
    longest = max(step.drafted for step in steps)
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    histogram = [0] * (longest + 1)
    for step in steps:
        histogram[step.accepted] += 1
    return {
        "mean_acceptance_length": 1 + accepted / len(steps),
        "draft_acceptance_rate": accepted / drafted,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": longest,
    }
