"""Decoding statistics reported by ``specdec serve``, vLLM, SGLang and llama-server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.backends.top_logprobs import letters_of
from ianvs_specdec.backends.untrusted import (
    MAX_DRAFT_TOKENS,
    MAX_TOKEN_ID,
    ImplausibleNumber,
    bounded_float,
    bounded_int,
    bounded_list,
    logprob,
)
from ianvs_specdec.benchmarks.extraction import LETTERS
from ianvs_specdec.common.types import Step, Trace

MAX_GAP = 1e6
"""Between the two best logits of a near tie."""
MAX_ENTROPY = 100.0
"""Nats, more than of any vocabulary."""
MAX_CHARACTERS = 1 << 16
"""Characters of one token."""


def token_ids_of(specdec: Mapping[str, Any], tokens: int) -> list[int]:
    """The ids of an output of ``tokens`` tokens, empty if not sent. Raises ImplausibleNumber."""
    ids = bounded_list(specdec.get("token_ids"), "token_ids", max(tokens, 1) * 2)
    return [bounded_int(token, "a token id", MAX_TOKEN_ID) for token in ids]


def near_ties_of(specdec: Mapping[str, Any], tokens: int) -> list[tuple[int, float]]:
    """Position and gap of each near tie. Raises ValueError (ImplausibleNumber) or TypeError."""
    ties = bounded_list(specdec.get("near_ties"), "near_ties", tokens)
    return [
        (
            bounded_int(position, "the position of a near tie", tokens),
            bounded_float(gap, "the gap of a near tie", 0, MAX_GAP),
        )
        for position, gap in ties
    ]


def steps_of(specdec: Mapping[str, Any], tokens: int) -> list[Step]:
    """The verification steps of an output of ``tokens`` tokens. Raises as ``near_ties_of``."""
    steps = [_step(*step) for step in bounded_list(specdec.get("steps"), "steps", tokens + 1)]
    if sum(step.emitted for step in steps) > tokens:
        raise ImplausibleNumber(f"steps emit more than the {tokens} tokens of the answer")
    return steps


def _step(drafted: Any, accepted: Any, emitted: Any, verified: Any) -> Step:
    step = Step(
        *(bounded_int(count, "a count of a step", MAX_DRAFT_TOKENS) for count in (drafted, accepted, emitted, verified))
    )
    if step.emitted > step.accepted + 1 or max(step.drafted, step.accepted) > step.verified:
        raise ImplausibleNumber(f"no step drafts {drafted}, accepts {accepted}, emits {emitted}, verifies {verified}")
    return step


def confidence_into(trace: Trace, specdec: Mapping[str, Any], tokens: int) -> None:
    """Set log-probability, entropy, margin and characters of each token. Raises as ``near_ties_of``, and KeyError."""
    trace.confidence = [
        (
            logprob(own),
            bounded_float(entropy, "the entropy of a token", 0, MAX_ENTROPY),
            bounded_float(margin, "the margin of a token", 0, 1.001),
        )
        for own, entropy, margin in bounded_list(specdec["confidence"], "confidence", tokens)
    ]
    characters = bounded_list(specdec["characters"], "characters", tokens)
    trace.characters = [bounded_int(number, "the characters of a token", MAX_CHARACTERS) for number in characters]
    if specdec.get("letters") is not None:
        letters = bounded_list(specdec["letters"], "letters", len(LETTERS))
        trace.letters = letters_of((str(letter), logprob(value)) for letter, value in letters)


def drafts_into(trace: Trace, timings: Mapping[str, Any], tokens: int, *, cut: bool) -> None:
    """Set the drafts of an answer of ``tokens`` tokens, as llama-server reports them, if at all.

    Raises ImplausibleNumber. Each pass emits one token more than it accepts. Drafts accepted after a stop string are
    counted, too; if the token limit ``cut`` the answer there are none, so passes can be derived. Other servers report
    passes as ``draft_rounds``.
    """
    if timings.get("draft_n") is None or timings.get("draft_n_accepted") is None:
        return
    drafted = bounded_int(timings["draft_n"], "draft_n", tokens * MAX_DRAFT_TOKENS)
    # The last draft may extend beyond the end of the answer.
    accepted = bounded_int(timings["draft_n_accepted"], "draft_n_accepted", min(drafted, tokens + MAX_DRAFT_TOKENS))
    trace.drafts = drafted, accepted
    if timings.get("draft_rounds") is not None:
        passes = bounded_int(timings["draft_rounds"], "draft_rounds", tokens)
        # Fewer are not all passes of this answer.
        trace.passes = passes if passes + accepted >= tokens - 1 else None
    elif cut and accepted < tokens:
        trace.passes = tokens - 1 - accepted


def acceptance_of_sglang(details: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """SGLang's ``sglext.spec_tokens_details`` in vLLM's format, empty without a histogram. Raises ImplausibleNumber."""
    steps = bounded_int(details["spec_verify_ct"], "spec_verify_ct", tokens)
    drafted = bounded_int(details["spec_num_proposed_drafts"], "spec_num_proposed_drafts", steps * MAX_DRAFT_TOKENS)
    histogram = bounded_list(
        details["spec_correct_drafts_histogram"], "spec_correct_drafts_histogram", MAX_DRAFT_TOKENS
    )
    if steps and not histogram:
        return {}
    longest = max(-(-drafted // max(steps, 1)), len(histogram) - 1)
    return {"acceptance_histogram": histogram, "num_draft_tokens": drafted, "num_spec_tokens": longest}


def steps_of_acceptance(metrics: Mapping[str, Any], tokens: int) -> list[Step]:
    """The verification steps of an answer of ``tokens`` tokens, from vLLM's metrics of a request.

    Its detailed report lists the steps; its summary, and SGLang's, is a histogram without order and draft lengths. Only
    sums are exact then. Steps without a draft, which are not reported, are added at the end, and the last steps are cut
    to the length of the output. Raises as ``near_ties_of``, and KeyError.
    """
    accepted = _counts(metrics.get("per_step_accepted"), "per_step_accepted", tokens)
    drafted = _counts(metrics.get("per_step_drafted"), "per_step_drafted", tokens)
    if not accepted or not drafted:
        accepted, drafted = _of_histogram(metrics, tokens)
    steps = [Step(d, a, a + 1, d + 1) for d, a in zip(drafted, accepted, strict=True)]
    # The prefill yields the first token and is no step.
    missing = tokens - 1 - sum(step.emitted for step in steps)
    if any(step.accepted > step.drafted for step in steps) or -missing > max(drafted, default=0) + 1:
        raise ImplausibleNumber(f"the reported acceptance is not that of an answer of {tokens} tokens")
    steps += [Step(0, 0, 1, 1) for _ in range(missing)]
    for step in reversed(steps):
        cut = min(step.emitted - 1, max(0, -missing))
        step.emitted -= cut
        missing += cut
    return steps


def _of_histogram(metrics: Mapping[str, Any], tokens: int) -> tuple[list[int], list[int]]:
    """Accepted and drafted tokens of each step; drafted tokens are distributed to match their sum."""
    longest = bounded_int(metrics["num_spec_tokens"], "num_spec_tokens", MAX_DRAFT_TOKENS)
    histogram = [
        bounded_int(count, "a count of acceptance_histogram", tokens)
        for count in bounded_list(metrics["acceptance_histogram"], "acceptance_histogram", longest + 1)
    ]
    steps = bounded_int(sum(histogram), "the sum of acceptance_histogram", tokens)
    drafted = bounded_int(metrics["num_draft_tokens"], "num_draft_tokens", longest * steps)
    accepted = [number for number, count in enumerate(histogram) for _ in range(count)]
    lengths, rest = list(accepted), drafted - sum(accepted)
    # Only steps with a draft are counted: each has at least one token.
    for least in (1, longest):
        for place, length in enumerate(lengths):
            more = min(max(rest, 0), max(least - length, 0))
            lengths[place] += more
            rest -= more
    if rest:
        raise ImplausibleNumber(f"steps that accept {sum(accepted)} tokens do not draft {drafted}")
    return accepted, lengths


def _counts(values: Any, what: str, tokens: int) -> list[int]:
    return [bounded_int(count, f"an entry of {what}", MAX_DRAFT_TOKENS) for count in bounded_list(values, what, tokens)]
