"""The beginning of an answer that is known, as if it had been asked for with that many tokens at most."""

from __future__ import annotations

from msgspec.structs import replace

from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.types import Completion, Step, Trace


def first_tokens(answer: Completion, tokens: int) -> Completion | None:
    """The first ``tokens`` tokens of an answer that is longer, with their part of its trace; None of any other, and of
    one that does not tell which characters are of which token."""
    trace = answer.trace
    if trace.characters is None or len(trace.characters) <= tokens:
        return None
    characters, confidence = trace.characters[:tokens], trace.confidence
    return replace(
        answer,
        text=answer.text[: sum(characters)],
        token_ids=answer.token_ids[:tokens],
        completion_tokens=tokens,
        finish_reason="length",
        trace=replace(
            trace,
            chunks=_chunks(trace, tokens),
            # The first token is the prompt's, of which no step tells.
            steps=_steps(trace, tokens - 1 if trace.tokens > sum(step.emitted for step in trace.steps) else tokens),
            near_ties=[tie for tie in trace.near_ties if tie[0] < tokens],
            rejected=[],
            confidence=None if confidence is None else confidence[:tokens],
            characters=characters,
        ),
    )


def saved_tokens(journal: Journal, keys: list[str], tokens: int) -> int | None:
    """How many more tokens than ``tokens`` the whole answer has that is kept under one of ``keys``; None if none is."""
    for key in keys:
        if (whole := journal.get(key)) is not None:
            return max(0, whole.completion.completion_tokens - tokens)
    return None


def _chunks(trace: Trace, tokens: int) -> list[tuple[float, int]]:
    chunks: list[tuple[float, int]] = []
    for seconds, number in trace.chunks:
        if tokens <= 0:
            break
        chunks.append((seconds, min(number, tokens)))
        tokens -= number
    return chunks


def _steps(trace: Trace, tokens: int) -> list[Step]:
    steps: list[Step] = []
    for step in trace.steps:
        if tokens <= 0:
            break
        emitted = min(step.emitted, tokens)
        steps.append(replace(step, emitted=emitted, accepted=min(step.accepted, emitted)))
        tokens -= step.emitted
    return steps
