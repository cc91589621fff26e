"""What servers report about decoding beside the answer: ``specdec serve`` all, vLLM, SGLang and llama-server less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.backends.top_logprobs import letters_of
from ianvs_specdec.backends.untrusted import LARGEST_ID, MOST_DRAFTED, ImplausibleNumber, listed, logprob, real, whole
from ianvs_specdec.benchmarks.extraction import LETTERS
from ianvs_specdec.common.types import Step, Trace

LARGEST_GAP = 1e6
"""Between the two best logits of a near tie, which is far smaller."""
LARGEST_ENTROPY = 100.0
"""Nats: that of more tokens than a vocabulary can have."""
MOST_CHARACTERS = 1 << 16
"""That one token adds to a text."""


def token_ids_of(specdec: Mapping[str, Any], tokens: int) -> list[int]:
    """The ids of an output of ``tokens`` tokens; empty where they are not sent. Raises ImplausibleNumber."""
    ids = listed(specdec.get("token_ids"), "token_ids", max(tokens, 1) * 2)
    return [whole(token, "a token id", LARGEST_ID) for token in ids]


def near_ties_of(specdec: Mapping[str, Any], tokens: int) -> list[tuple[int, float]]:
    """Raises ImplausibleNumber, and ValueError or TypeError for what is no list of pairs."""
    ties = listed(specdec.get("near_ties"), "near_ties", tokens)
    return [
        (whole(position, "the position of a near tie", tokens), real(gap, "the gap of a near tie", 0, LARGEST_GAP))
        for position, gap in ties
    ]


def steps_of(specdec: Mapping[str, Any], tokens: int) -> list[Step]:
    """The verification steps of an output of ``tokens`` tokens. Raises as ``near_ties_of``."""
    steps = [_step(*step) for step in listed(specdec.get("steps"), "steps", tokens + 1)]
    if sum(step.emitted for step in steps) > tokens:
        raise ImplausibleNumber(f"steps put out more than the {tokens} tokens of the answer")
    return steps


def _step(drafted: Any, accepted: Any, emitted: Any, verified: Any) -> Step:
    step = Step(*(whole(count, "a count of a step", MOST_DRAFTED) for count in (drafted, accepted, emitted, verified)))
    if step.emitted > step.accepted + 1 or max(step.drafted, step.accepted) > step.verified:
        raise ImplausibleNumber(
            f"no step drafts {drafted}, accepts {accepted}, puts out {emitted}, verifies {verified}"
        )
    return step


def confidence_into(trace: Trace, specdec: Mapping[str, Any], tokens: int) -> None:
    """Log-probability, entropy and margin of each token, and the characters that it adds. Raises as ``near_ties_of``,
    and KeyError.
    """
    trace.confidence = [
        (
            logprob(told),
            real(entropy, "the entropy of a token", 0, LARGEST_ENTROPY),
            real(margin, "the margin of a token", 0, 1.001),
        )
        for told, entropy, margin in listed(specdec["confidence"], "confidence", tokens)
    ]
    characters = listed(specdec["characters"], "characters", tokens)
    trace.characters = [whole(number, "the characters of a token", MOST_CHARACTERS) for number in characters]
    if specdec.get("letters") is not None:
        letters = listed(specdec["letters"], "letters", len(LETTERS))
        trace.letters = letters_of((str(letter), logprob(value)) for letter, value in letters)


def drafts_into(trace: Trace, timings: Mapping[str, Any], tokens: int, *, cut: bool) -> None:
    """What llama-server and servers like it drafted and accepted for an answer of ``tokens`` tokens; nothing where they
    report nothing. Raises ImplausibleNumber.

    llama-server does not report passes, but each emits one token more than it accepts. Drafts accepted behind a stop
    are in its counts and not in the answer; where the token limit ``cut`` the answer there are none, since it drafts no
    further. Others report passes as ``draft_rounds``.
    """
    if timings.get("draft_n") is None or timings.get("draft_n_accepted") is None:
        return
    drafted = whole(timings["draft_n"], "draft_n", tokens * MOST_DRAFTED)
    # Of the last draft, some may stand behind the end of the answer.
    accepted = whole(timings["draft_n_accepted"], "draft_n_accepted", min(drafted, tokens + MOST_DRAFTED))
    trace.drafts = drafted, accepted
    if timings.get("draft_rounds") is not None:
        passes = whole(timings["draft_rounds"], "draft_rounds", tokens)
        # Fewer cannot be all passes of this answer.
        trace.passes = passes if passes + accepted >= tokens - 1 else None
    elif cut and accepted < tokens:
        trace.passes = tokens - 1 - accepted


def acceptance_of_sglang(details: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """What SGLang reports of an answer (``sglext.spec_tokens_details``), in vLLM's names; empty without a histogram.
    Raises ImplausibleNumber."""
    steps = whole(details["spec_verify_ct"], "spec_verify_ct", tokens)
    drafted = whole(details["spec_num_proposed_drafts"], "spec_num_proposed_drafts", steps * MOST_DRAFTED)
    histogram = listed(details["spec_correct_drafts_histogram"], "spec_correct_drafts_histogram", MOST_DRAFTED)
    if steps and not histogram:
        return {}
    longest = max(-(-drafted // max(steps, 1)), len(histogram) - 1)
    return {"acceptance_histogram": histogram, "num_draft_tokens": drafted, "num_spec_tokens": longest}


def steps_of_acceptance(metrics: Mapping[str, Any], tokens: int) -> list[Step]:
    """The verification steps of an answer of ``tokens`` tokens, from the acceptance that vLLM reports per request.

    Its detailed report has them one by one, its summary as a histogram, of which the order is not known, nor how long
    each draft was; so it is with SGLang. Steps without a draft, which both leave out, follow at the end, and the last
    ones are cut to what the output had room for, so that sums are those of the server. Raises as ``near_ties_of``, and
    KeyError. No list is made before its length is known to be that of an answer.
    """
    accepted = _counts(metrics.get("per_step_accepted"), "per_step_accepted", tokens)
    drafted = _counts(metrics.get("per_step_drafted"), "per_step_drafted", tokens)
    if not accepted or not drafted:
        accepted, drafted = _of_histogram(metrics, tokens)
    steps = [Step(d, a, a + 1, d + 1) for d, a in zip(drafted, accepted, strict=True)]
    # The prefill yields the first token and is no step.
    missing = tokens - 1 - sum(step.emitted for step in steps)
    if any(step.accepted > step.drafted for step in steps) or -missing > max(drafted, default=0) + 1:
        raise ImplausibleNumber(f"the acceptance that it reports is not that of an answer of {tokens} tokens")
    steps += [Step(0, 0, 1, 1) for _ in range(missing)]
    for step in reversed(steps):
        cut = min(step.emitted - 1, max(0, -missing))
        step.emitted -= cut
        missing += cut
    return steps


def _of_histogram(metrics: Mapping[str, Any], tokens: int) -> tuple[list[int], list[int]]:
    """What steps accepted, and as many drafted tokens as all had, none more than the longest draft."""
    longest = whole(metrics["num_spec_tokens"], "num_spec_tokens", MOST_DRAFTED)
    histogram = [
        whole(count, "a count of acceptance_histogram", tokens)
        for count in listed(metrics["acceptance_histogram"], "acceptance_histogram", longest + 1)
    ]
    steps = whole(sum(histogram), "the sum of acceptance_histogram", tokens)
    drafted = whole(metrics["num_draft_tokens"], "num_draft_tokens", longest * steps)
    accepted = [number for number, count in enumerate(histogram) for _ in range(count)]
    lengths, rest = list(accepted), drafted - sum(accepted)
    # Only steps with a draft are counted: each has one token of the rest before any has more.
    for least in (1, longest):
        for place, length in enumerate(lengths):
            more = min(max(rest, 0), max(least - length, 0))
            lengths[place] += more
            rest -= more
    if rest:
        raise ImplausibleNumber(f"steps that accept {sum(accepted)} tokens do not draft {drafted}")
    return accepted, lengths


def _counts(told: Any, what: str, tokens: int) -> list[int]:
    return [whole(count, f"an entry of {what}", MOST_DRAFTED) for count in listed(told, what, tokens)]
