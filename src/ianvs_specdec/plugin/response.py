"""Construction of responses from completions: see ``records.response``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from ianvs_specdec.benchmarks.extraction import FOUR_LETTERS, options_of
from ianvs_specdec.benchmarks.scorers import CHOICES, LOGPROB, prediction
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.records.journal import StoredPrefill
from ianvs_specdec.records.response import Response


@dataclass
class Attempt:
    """A conversation over the turns of a query. ``turns``: see ``turn_of``; ``error``: why a turn has no answer."""

    completions: list[Completion] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    error: AnswerError | None = None


# Equal verification steps share one object: most of them are equal.
_STEPS: dict[tuple[int, ...], tuple[int, ...]] = {}


def _frozen(trace: Trace) -> dict[str, Any]:
    """``Trace.to_json`` with tuples in place of lists."""
    data = replace(trace, chunks=[], steps=[], near_ties=[]).to_json()
    data["steps"] = tuple([_STEPS.setdefault(step, step) for step in map(astuple, trace.steps)])
    data["chunks"], data["near_ties"] = tuple(trace.chunks), tuple(trace.near_ties)
    for name in ("rejected", "failures", "confidence"):
        if name in data:
            data[name] = tuple(data[name])
    return data


def turn_of(completion: Completion, **details: Any) -> dict[str, Any]:
    """One turn of a response."""
    return {
        "completion": completion.text,
        "token_ids": tuple(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": _usage([completion]),
        "trace": _frozen(completion.trace),
        **({"truncated": completion.truncated} if completion.truncated != 0 else {}),
        **details,
    }


def response_of(
    query: Query,
    completions: Sequence[Completion],
    turns: list[dict[str, Any]],
    samples: Sequence[Attempt] = (),
    **details: Any,
) -> Response:
    """The response to a query. ``samples``: further answers; ``details``: further keys, such as ``cost``."""
    further = [completion for sample in samples for completion in sample.completions]
    every = [*turns, *(turn for sample in samples for turn in sample.turns)]
    return Response(
        **_answer(query, completions, turns),
        usage=_usage([*completions, *further]),
        perf=_perf([c.trace for c in completions], [c.trace for c in further]),
        replayed=any(turn["replayed"] for turn in every),
        cached=any(turn["cached"] for turn in every),
        **({"samples": [_sample(query, sample) for sample in samples]} if samples else {}),
        query_id=query.id,
        group=query.group,
        scorer=query.scorer,
        **({"options": len(options)} if (options := _options(query)) else {}),
        **details,
    )


def prefill_response(query: Query, kept: StoredPrefill, key: str, **details: Any) -> Response:
    """The response of an edge that only computed the first prompt. ``key``: that of the prefill in the journal."""
    read = kept.prefill
    response = response_of(query, [], [], **details)
    response["usage"] = {
        "prompt_tokens": read.prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": read.prompt_tokens,
    }
    response["prefill"] = {
        "seconds": read.seconds,
        "issued": read.issued,
        "hardware": kept.hardware,
        "replayed": kept.replayed,
        "key": key,
        **({"energy": msgspec.to_builtins(read.energy)} if read.energy is not None else {}),
    }
    return response


def with_prefill(response: Response, read: Response) -> Response:
    """The response with the tokens and cost of the earlier prefill ``read``."""
    response["usage"] = {name: tokens + read["usage"][name] for name, tokens in response["usage"].items()}
    response["cost"] = read["cost"] if response["cost"] is None else response["cost"] + read["cost"]
    response["prefill"] = read["prefill"]
    return response


def _options(query: Query) -> str:
    """The letters of the options; "" if unknown."""
    return options_of(query.turns[-1]) if query.scorer in CHOICES and query.turns else ""


def with_letter(query: Query, completion: Completion) -> Completion:
    """The completion of a query whose scorer compares probabilities, with the likeliest option letter as its text (""
    if no letter has a reported probability). Raises AnswerError."""
    if completion.trace.letters is None:
        reason = f"scorer {LOGPROB}: the answer has no log-probabilities of letters: generate it again (ianvs --fresh)"
        raise AnswerError(reason)
    known = _options(query) or FOUR_LETTERS  # if the question does not show its options
    options = {letter: value for letter, value in completion.trace.letters if letter in known}
    return msgspec.structs.replace(completion, text=max(options, key=options.__getitem__, default=""))


def _answer(query: Query, completions: Sequence[Completion], turns: list[dict[str, Any]]) -> dict[str, Any]:
    answers = [completion.text for completion in completions]
    return {
        "completion": "\n\n".join(answers),
        "prediction": prediction(query.scorer, answers) if answers else None,
        "turns": turns,
    }


def _sample(query: Query, sample: Attempt) -> dict[str, Any]:
    error = {} if sample.error is None else {"error": str(sample.error), "failures": sample.error.failures}
    return {**_answer(query, sample.completions, sample.turns), **error}


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    prompt = sum(completion.prompt_tokens for completion in completions)
    generated = sum(completion.completion_tokens for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _perf(traces: Sequence[Trace], further: Sequence[Trace]) -> dict[str, float | None]:
    latency = sum(trace.latency or 0.0 for trace in (*traces, *further))
    total = sum(trace.tokens for trace in (*traces, *further))
    seconds = sum(trace.chunks[-1][0] - trace.chunks[0][0] for trace in traces if trace.chunks)
    tokens = sum(trace.tokens - trace.chunks[0][1] for trace in traces if trace.chunks)
    return {
        "time_to_first_token": traces[0].ttft if traces else None,
        "internal_token_latency": seconds / tokens if tokens else None,
        "throughput": total / latency if latency > 0 else None,
        "latency": latency if total else None,
    }
