"""The first tokens of an answer, and an answer from two requests: one for these and one for the rest."""

from __future__ import annotations

from msgspec.structs import replace

from ianvs_specdec.common.types import Completion, Energy, Step, Trace
from ianvs_specdec.records.journal import Journal


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
            thinking=min(trace.thinking, tokens),
            answered=trace.answered if trace.thinking < tokens else None,
            drafts=None,
            passes=None,
            drafting=None,
            energy=None,
        ),
    )


def joined(begun: Completion, whole: Completion) -> Completion:
    """The ``whole`` answer with what both of its requests took: its own trace is that of the second one, which
    continues ``begun``."""
    one, two = begun.trace, whole.trace
    tokens, waited = begun.completion_tokens, one.latency or 0.0
    alone = one.busy is None and two.busy is None
    trace = replace(
        two,
        chunks=[*one.chunks, *((waited + seconds, number) for seconds, number in two.chunks)],
        steps=one.steps + two.steps,
        near_ties=[*one.near_ties, *((place + tokens, gap) for place, gap in two.near_ties)],
        rejected=one.rejected + two.rejected,
        failures=one.failures + two.failures,
        confidence=None if one.confidence is None else one.confidence + (two.confidence or []),
        letters=one.letters,
        answered=two.answered and (waited + two.answered if one.answered is None else one.answered),
        drafts=None,
        passes=None,
        drafting=None if one.drafting is None or two.drafting is None else one.drafting + two.drafting,
        energy=_energy(one.energy, two.energy),
        issued=one.issued,
        busy=None if alone else sum(trace.latency or 0.0 if trace.busy is None else trace.busy for trace in (one, two)),
    )
    return replace(whole, prompt_tokens=begun.prompt_tokens + whole.prompt_tokens, trace=trace)


def saved_tokens(journal: Journal, keys: list[str], tokens: int) -> int | None:
    """How many more tokens than ``tokens`` the whole answer has that is kept under one of ``keys``; None if none is."""
    for key in keys:
        if (whole := journal.get(key)) is not None:
            return max(0, whole.completion.completion_tokens - tokens)
    return None


def _energy(one: Energy | None, two: Energy | None) -> Energy | None:
    if one is None or two is None or one.source != two.source:
        return None
    idle = None if one.idle is None or two.idle is None else one.idle + two.idle
    return replace(two, joules=one.joules + two.joules, seconds=one.seconds + two.seconds, idle=idle)


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
