"""Parts of the OpenAI protocol that all endpoints share: errors, server-sent events, usage, counts of speculation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.api.stream import TRUNCATED
from ianvs_specdec.common.types import Completion

LINE_ENDS = "\x85\u2028\u2029"


class RequestError(Exception):
    """An error response: HTTP status, error object, headers. ``outcome``: label of the request in the metrics."""

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


def invalid(param: str, message: str, code: str | None = None) -> RequestError:
    """An invalid parameter."""
    return RequestError(400, message, param=param, code=code)


def check_model(name: str, models: Sequence[str]) -> None:
    """Raise RequestError for an unknown name. ``models`` may contain more names than it lists."""
    if name not in models:
        message = f"the model {name[:256]!r} does not exist here; this server has {', '.join(map(repr, models))}"
        raise RequestError(404, message, param="model", code="model_not_found")


def served_name(model: str) -> str:
    """Default name of a served model: that of its folder, or on the hub."""
    return Path(model).resolve().name if Path(model).exists() else model


def usage(completions: Iterable[Completion], per_prompt: int = 1) -> dict[str, int]:
    """Token usage. The choices of a prompt (``per_prompt``) follow each other; each prompt counts once."""
    choices = list(completions)
    prompt = sum(completion.prompt_tokens for completion in choices[::per_prompt])
    output = sum(completion.completion_tokens for completion in choices)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def truncation(completion: Completion) -> dict[str, int]:
    """Number of truncated prompt tokens; empty if unknown (back end ``api``)."""
    return {} if completion.truncated is None else {TRUNCATED: completion.truncated}


def details(completion: Completion) -> dict[str, Any]:
    """The field ``specdec`` of an answer: token ids and verification steps (see ``types.Trace``)."""
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
    # Some clients split lines at every line separator of Unicode.
    for character in LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n".encode()


def speculation(completion: Completion) -> dict[str, Any]:
    """``metrics.speculative_decoding`` of an answer, as in vLLM: of the verification steps with a draft.

    Empty without drafts. ``acceptance_histogram``: number of steps that accepted 0, 1, 2 ... tokens.
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
