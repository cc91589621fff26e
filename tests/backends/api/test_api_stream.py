"""What a stream of chat completion chunks is read as, byte by byte."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import astuple

from ianvs_specdec.backends.api.decoding_stats import steps_of_acceptance
from ianvs_specdec.backends.api.failures import AttemptError, RetryOutlook
from ianvs_specdec.backends.api.stream import StreamedAnswer
from ianvs_specdec.backends.untrusted import ImplausibleNumber
from ianvs_specdec.common.types import Completion, Step, Trace


def event(end: str = "\n", **fields: Any) -> bytes:
    return f"data: {json.dumps({'choices': [], **fields}, ensure_ascii=False)}{end}{end}".encode()


def delta(content: str | None = None, reason: str | None = None, end: str = "\n", **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content, **fields}, "finish_reason": reason}
    return event(end, choices=[choice])


def usage(tokens: int, **fields: Any) -> dict[str, Any]:
    return {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens, **fields}


DONE = b"data: [DONE]\n\n"
WHOLE = (delta("Grüße, "), delta("Wörld 🙂"), delta(reason="stop"), event(usage=usage(4)), DONE)


def read(*parts: bytes, size: int | None = None) -> Completion:
    """The answer, fed in the given parts, or in parts of ``size`` bytes; the clock counts the parts."""
    if size:
        stream = b"".join(parts)
        parts = tuple(stream[index : index + size] for index in range(0, len(stream), size))
    answer = StreamedAnswer()
    for seconds, part in enumerate(parts):
        answer.feed(part, float(seconds))
    return answer.completion()


def counted(tokens: int, **fields: Any) -> Completion:
    """The whole answer, with further ``fields`` in its last chunk."""
    return read(*WHOLE[:3], event(usage=usage(tokens), **fields), DONE)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pieces_may_be_cut_anywhere(size: int, end: str) -> None:
    stream = b"".join(WHOLE).replace(b"\n", end.encode())
    answer = read(b"\xef\xbb\xbf: a comment\n\nevent: x\nid: 3\n\n", stream, size=size)
    assert (answer.text, answer.completion_tokens, answer.finish_reason) == ("Grüße, Wörld 🙂", 4, "stop")
    assert answer.trace.tokens == 4
    assert [seconds for seconds, _ in read(*WHOLE).trace.chunks] == [0.0, 1.0]


def malformed(payload: str) -> tuple[bytes, ...]:
    return delta("abc"), f"data: {payload}\n\n".encode()


@pytest.mark.parametrize(
    ("parts", "kind", "outlook"),
    [
        ((*WHOLE[:3], DONE), "no usage", RetryOutlook.ENDPOINT),
        ((*WHOLE[:3], event(usage=usage(0)), DONE), "no usage", RetryOutlook.ENDPOINT),
        (
            (*WHOLE[:3], event(usage=usage(4), specdec={"token_ids": [1, 2]}), DONE),
            "broken stream",
            RetryOutlook.TEMPORARY,
        ),
        (
            (*WHOLE[:3], event(usage=usage(4), specdec={"steps": [[1]]}), DONE),
            "broken stream",
            RetryOutlook.TEMPORARY,
        ),
        ((delta("abc"), event(usage=usage(1)), DONE), "broken stream", RetryOutlook.TEMPORARY),
        ((delta("abc"), delta(reason="error"), event(usage=usage(1)), DONE), "broken stream", RetryOutlook.TEMPORARY),
        (malformed("{"), "broken stream", RetryOutlook.TEMPORARY),
        (malformed('{"choices": [{"delta": {"content": 3}}]}'), "broken stream", RetryOutlook.TEMPORARY),
        (malformed('{"usage": 3}'), "broken stream", RetryOutlook.TEMPORARY),
        (malformed("[" * 100_000), "broken stream", RetryOutlook.TEMPORARY),
        ((delta("abc"), event(error={"message": "no memory"})), "server error", RetryOutlook.TEMPORARY),
        ((delta("abc"), event(error={"message": "no memory", "code": 503})), "status 503", RetryOutlook.TEMPORARY),
        ((delta("abc"), event(error={"message": "slow down", "code": 429})), "rate limit", RetryOutlook.BUSY),
        ((event(error={"code": "insufficient_quota", "status": 429}),), "quota", RetryOutlook.ENDPOINT),
    ],
)
def test_what_is_no_whole_answer_is_a_failure(parts: tuple[bytes, ...], kind: str, outlook: RetryOutlook) -> None:
    with pytest.raises(AttemptError) as caught:
        read(*parts)
    assert (caught.value.kind, caught.value.outlook) == (kind, outlook)


@pytest.mark.parametrize(("told", "kept"), [("length", "length"), ("content_filter", "stop")])
def test_finish_reasons(told: str, kept: str) -> None:
    assert read(delta("abc"), delta(reason=told), event(usage=usage(1))).finish_reason == kept


def test_reasoning_is_output_and_not_the_answer() -> None:
    answer = read(delta(reasoning_content="abcdef"), delta("xyz"), delta(reason="stop"), event(usage=usage(9)))
    assert (answer.text, answer.completion_tokens) == ("xyz", 9)
    assert answer.trace.chunks == [(0.0, 6), (1.0, 3)]
    assert (answer.trace.thinking, answer.trace.answered) == (6, 1.0)
    pieces = (delta(reasoning_content="abc"), delta("xy"), delta(reasoning_content="d"), delta("z"))
    later = read(*pieces, delta(reason="stop"), event(usage=usage(7))).trace
    assert (later.thinking, later.answered) == (3, 1.0)


def test_thoughts_within_the_text_are_counted_apart() -> None:
    pieces = (delta("<think>no"), delta("pe</think>"), delta("yes"), delta(reason="stop"))
    trace = read(*pieces, event(usage=usage(11))).trace
    assert (trace.thinking, trace.answered) == (sum(tokens for _, tokens in trace.chunks[:2]), 2.0)
    plain = read(delta("yes"), delta(reason="stop"), event(usage=usage(1))).trace
    assert (plain.thinking, plain.answered) == (0, None)


def parts(*found: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"type": kind, kind: said} for kind, said in found]


def test_a_list_of_parts_is_text_and_reasoning() -> None:
    nested = parts(("thinking", parts(("text", "abc"))))
    both = parts(("reasoning", None), ("thinking", "gh"), ("text", "x"), ("text", "y"))
    pieces = [event(choices=[{"index": 0, "delta": {"content": content}}]) for content in (nested, both, "z", [])]
    answer = read(*pieces, delta(reason="stop"), event(usage=usage(8)))
    assert (answer.text, answer.completion_tokens) == ("xyz", 8)
    assert answer.trace.chunks == [(0.0, 3), (1.0, 4), (2.0, 1)]


def test_reasoning_that_is_not_shown_comes_with_the_first_chunk() -> None:
    counted = usage(20, completion_tokens_details={"reasoning_tokens": 12})
    answer = read(delta("abcd"), delta("efgh"), delta(reason="stop"), event(usage=counted))
    assert answer.trace.chunks == [(0.0, 16), (1.0, 4)]


def test_an_endless_event_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.backends.api.stream.MAX_EVENT", 1000)
    with pytest.raises(AttemptError, match="more than an answer can hold"):
        read(b"data: " + b"x" * 2000)


def test_our_own_server_tells_ids_steps_and_near_ties() -> None:
    told = {
        "steps": [[3, 2, 3, 4], [3, 0, 0, 4]],
        "token_ids": [7, 8, 9, 1],
        "near_ties": [[2, 0.0004]],
        "truncated": 3,
    }
    answer = counted(4, specdec=told)
    assert answer.token_ids == [7, 8, 9, 1]
    assert answer.trace.steps == [Step(3, 2, 3, 4), Step(3, 0, 0, 4)]
    assert answer.trace.near_ties == [(2, 0.0004)]
    assert answer.truncated == 3
    assert answer.trace.tokens == 4
    told["steps"] = [[3, 2, 3, 4]]
    answer = counted(4, specdec=told)
    assert answer.trace.chunks == [(0.0, 1), (1.0, 3)], "a chunk for the prefill and one for the step"


@pytest.mark.parametrize("letters", [None, [("B", -0.5)]])
def test_letters_that_our_server_does_not_tell_are_unknown(letters: list[tuple[str, float]] | None) -> None:
    told: dict[str, Any] = {"confidence": [[-0.5, 0.4, 0.5]] * 4, "characters": [4] * 4}
    told |= {} if letters is None else {"letters": letters}
    answer = StreamedAnswer(logprobs=True)
    for part in (*WHOLE[:3], event(usage=usage(4), specdec=told), DONE):
        answer.feed(part, 0.0)
    trace = answer.completion().trace
    assert trace.confidence == [(-0.5, 0.4, 0.5)] * 4
    assert trace.letters == letters


def acceptance(drafted: list[int], accepted: list[int], longest: int, *, detailed: bool) -> dict[str, Any]:
    """As vLLM reports it."""
    steps = {"per_step_accepted": accepted, "per_step_drafted": drafted} if detailed else {}
    histogram = [accepted.count(number) for number in range(longest + 1)]
    return {
        "acceptance_histogram": histogram,
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": longest,
        **steps,
    }


def test_the_acceptance_that_vllm_reports_is_steps() -> None:
    metrics = acceptance([3, 2, 3], [1, 2, 0], 3, detailed=True)
    answer = counted(7, metrics={"speculative_decoding": metrics})
    assert answer.trace.steps == [Step(3, 1, 2, 4), Step(2, 2, 3, 3), Step(3, 0, 1, 4)]
    # Two steps went without a draft.
    assert steps_of_acceptance(metrics, 9)[3:] == [Step(0, 0, 1, 1)] * 2
    # The output ended in the middle of a step.
    assert [step.emitted for step in steps_of_acceptance(metrics, 6)] == [2, 2, 1]


def sums(steps: list[Step]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*map(astuple, steps), strict=True)))


def test_a_histogram_is_steps_with_the_servers_sums() -> None:
    metrics = acceptance([3, 3, 3], [3, 0, 0], 3, detailed=False)
    assert steps_of_acceptance(metrics, 7) == [Step(3, 0, 1, 4), Step(3, 0, 1, 4), Step(3, 3, 4, 4)]
    unequal = steps_of_acceptance(acceptance([3, 2, 3], [1, 2, 0], 3, detailed=False), 7)
    assert sums(unequal) == (8, 3, 6, 11)
    metrics = {"acceptance_histogram": [4, 2, 0, 0, 0, 4], "num_draft_tokens": 26, "num_spec_tokens": 5}
    assert [step.drafted for step in steps_of_acceptance(metrics, 33)] == [1] * 6 + [5] * 4


SGLANG = {
    "spec_accept_rate": 0.2930232558139535,
    "spec_accept_length": 2.4651162790697674,
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}
"""Of an answer of 106 tokens, as a user of SGLang published it in its pull request 33518."""


def sglang(**changed: Any) -> list[Step]:
    return counted(106, sglext={"spec_tokens_details": SGLANG | changed}).trace.steps


def test_the_acceptance_that_sglang_reports_is_steps() -> None:
    steps = sglang()
    assert sums(steps) == (215, 63, 105, 258)
    assert Counter(step.accepted for step in steps) == {0: 11, 1: 14, 2: 11, 3: 4, 5: 3}
    assert sums(sglang(spec_num_proposed_drafts=100))[:2] == (100, 63), "drafts that end early"
    tree = sglang(spec_num_proposed_drafts=258, spec_correct_drafts_histogram=[0, 23, 20])
    assert sums(tree)[:2] == (258, 63), "a tree of 6 tokens and 2 levels"
    assert sglang(spec_correct_drafts_histogram=[]) == []
    for wrong in ({"spec_num_proposed_drafts": 62}, {"spec_correct_drafts_histogram": [0] * 40 + [43]}):
        with pytest.raises(ImplausibleNumber):
            sglang(**wrong)


def test_the_drafts_that_llama_server_counts_are_told() -> None:
    def trace(reason: str = "stop", **timings: Any) -> Trace:
        return read(*WHOLE[:2], delta(reason=reason), event(usage=usage(4), timings=timings), DONE).trace

    assert trace(draft_n=8, draft_n_accepted=2).drafts == (8, 2)
    assert trace().drafts is trace(draft_n=8).drafts is None
    # What it accepted behind a stop has no pass; to a limit it drafts no further.
    assert trace(draft_n=8, draft_n_accepted=2).passes is None
    assert trace("length", draft_n=8, draft_n_accepted=2).passes == 1
    assert trace("length", draft_n=8, draft_n_accepted=5).passes is None
    assert trace(draft_n=8, draft_n_accepted=5, draft_rounds=2).passes == 2
    # A pass puts out one token more than it accepts: one pass is not all of 4 tokens.
    assert trace("length", draft_n=8, draft_n_accepted=0, draft_rounds=1).passes is None
    for wrong in ({"draft_n": 8, "draft_n_accepted": 9}, {"draft_n": 10**9, "draft_n_accepted": 2}):
        with pytest.raises(ImplausibleNumber):
            trace(**wrong)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("A \ud83d", "\ude42 b"), "A 🙂 b"),
        (("A \ude42", "b\ud83d"), "A \ufffdb\ufffd"),
    ],
)
def test_halves_of_a_character_are_put_together_or_marked(pieces: tuple[str, ...], text: str) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    answer = read(*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), *WHOLE[2:])
    assert answer.text == text
    assert answer.trace.tokens == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"metrics": [1]},
        {"metrics": {"speculative_decoding": {"per_step_accepted": 0.5}}},
        {"timings": [1], "metrics": "x"},
        {"usage": {"prompt_tokens": 5, "completion_tokens": None, "total_tokens": 5}},
    ],
)
def test_what_other_servers_add_to_a_chunk_breaks_nothing(fields: dict[str, Any]) -> None:
    first = event(choices=[{"index": 0, "delta": {"content": "Grüße, "}, "finish_reason": None}], **fields)
    last = event(**{"usage": usage(4), **fields} if "usage" not in fields else {"usage": usage(4)})
    answer = read(first, *WHOLE[1:3], last, DONE)
    assert (answer.text, answer.trace.steps) == ("Grüße, Wörld 🙂", [])
    counted = read(*WHOLE[:3], event(usage={"prompt_tokens": 5.0, "completion_tokens": 4.0}), DONE)
    assert (counted.prompt_tokens, counted.completion_tokens) == (5, 4)
    assert type(counted.completion_tokens) is int
