"""Servers that count what cannot be: nothing of it is believed, nothing grows by it, and the failure says where."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.api.failures import of_status
from ianvs_specdec.backends.api.stream import Most
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Completion, Sampling
from tests.support.api_server import ScriptedAPI, Serve, refusal
from tests.support.servers import response

MOST_TOKENS = 64
HUGE = "9" * 400
ABSURD = ("1e999", "-1e999", "NaN", "Infinity", HUGE, "9" * 5000, "1000000000000", "-1", "2.5", "true", '"7"', "[7]")
"""What stands in place of a count, as JSON or what some servers take for it."""


def streamed(*, usage: str = '{"prompt_tokens": 5, "completion_tokens": 3}', more: str = "", piece: str = "") -> bytes:
    """An answer of three tokens whose events are written as they are given."""
    events = [
        f'{{"choices": [{{"index": 0, "delta": {{"content": "good"}}{piece}}}]}}',
        '{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}',
        f'{{"choices": [], "usage": {usage}{more}}}',
        "[DONE]",
    ]
    body = "".join(f"data: {event}\n\n" for event in events)
    return response(body.encode(), headers="Content-Type: text/event-stream\r\n", chunked=50)


def ask(server: ScriptedAPI, **sampling: Any) -> Completion:
    with APIBasedLLM("m", api_base_url=server.url, api_retries=0, api_deadline=20.0) as model:
        return model.generate([{"role": "user", "content": "x"}], Sampling(**{"max_tokens": MOST_TOKENS, **sampling}))


def check_refused(server: ScriptedAPI, **sampling: Any) -> None:
    with pytest.raises(AnswerError) as caught:
        ask(server, **sampling)
    assert [kind for _, kind in caught.value.failures] == ["implausible number"]
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("number", ABSURD)
def test_usage_is_a_count_that_the_request_can_have_led_to(serve: Serve, number: str) -> None:
    three = '"prompt_tokens": 5, "completion_tokens": 3'
    for usage in (
        f'{{"prompt_tokens": 5, "completion_tokens": {number}}}',
        f'{{"prompt_tokens": {number}, "completion_tokens": 3}}',
        f'{{{three}, "prompt_tokens_details": {{"cached_tokens": {number}}}}}',
        f'{{{three}, "completion_tokens_details": {{"reasoning_tokens": {number}}}}}',
    ):
        check_refused(serve(lambda prompt, count, usage=usage: streamed(usage=usage)))  # type: ignore[misc]


@pytest.mark.parametrize("number", ABSURD)
def test_what_the_engine_counted_is_what_an_answer_can_have(serve: Serve, number: str) -> None:
    for told in (
        f'"steps": [[3, 2, 2, {number}]]',
        f'"steps": [[{number}, 2, 2, 4]]',
        f'"token_ids": [1, 2, {number}]',
        f'"near_ties": [[{number}, 0.1]]',
        f'"truncated": {number}',
    ):
        check_refused(serve(lambda prompt, count, told=told: streamed(more=f', "specdec": {{{told}}}')))  # type: ignore[misc]
    check_refused(serve(lambda prompt, count: streamed(more=f', "truncated_prompt_tokens": {number}')))


@pytest.mark.parametrize("number", ABSURD)
def test_what_other_servers_count_of_drafts_is_what_an_answer_can_have(serve: Serve, number: str) -> None:
    counts = {"spec_verify_ct": "2", "spec_num_proposed_drafts": "6", "spec_correct_drafts_histogram": "[1, 1]"}
    timings = {"draft_n": "6", "draft_n_accepted": "1", "draft_rounds": "2"}

    def more(told: dict[str, str], name: str, value: str) -> str:
        fields = ", ".join(f'"{key}": {value if key == name else count}' for key, count in told.items())
        return (
            f', "timings": {{{fields}}}' if told is timings else f', "sglext": {{"spec_tokens_details": {{{fields}}}}}'
        )

    for told in (counts, timings):
        assert ask(serve(lambda prompt, count, told=told: streamed(more=more(told, "", "")))).trace.tokens == 3  # type: ignore[misc]
        for name in told:
            value = f"[1, {number}]" if "histogram" in name else number
            body = streamed(more=more(told, name, value))
            check_refused(serve(lambda prompt, count, body=body: body))  # type: ignore[misc]


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "1e300", "5", HUGE, "true", '"7"'])
def test_confidence_is_of_probabilities(serve: Serve, number: str) -> None:
    for told in (
        f"[{number}, 0.1, 0.5]",
        f"[-0.1, {number}{'00' if number == '5' else ''}, 0.5]",
        f"[-0.1, 0.1, {number}]",
    ):
        more = f', "specdec": {{"confidence": [{told}], "characters": [4]}}'
        check_refused(serve(lambda prompt, count, more=more: streamed(more=more)), logprobs=True)  # type: ignore[misc]
    for token in (
        f'{{"token": "good", "logprob": {number}, "top_logprobs": [{{"token": "x", "logprob": -0.1}}]}}',
        f'{{"token": "good", "logprob": -0.1, "top_logprobs": [{{"token": "x", "logprob": {number}}}]}}',
    ):
        piece = f', "logprobs": {{"content": [{token}]}}'
        check_refused(serve(lambda prompt, count, piece=piece: streamed(piece=piece)), logprobs=True)  # type: ignore[misc]


def test_the_bytes_of_a_token_are_no_number_of_bytes(serve: Serve) -> None:
    token = '{"token": "good", "logprob": -0.1, "bytes": 3000000000, "top_logprobs": [{"token": "x", "logprob": -0.1}]}'
    server = serve(lambda prompt, count: streamed(piece=f', "logprobs": {{"content": [{token}]}}'))
    tracemalloc.start()
    try:
        with pytest.raises(AnswerError):
            ask(server, logprobs=True)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_more_tokens_than_were_asked_for_are_not_believed(serve: Serve) -> None:
    server = serve(lambda prompt, count: streamed(usage=f'{{"prompt_tokens": 5, "completion_tokens": {prompt}}}'))

    def counted(tokens: int, **options: Any) -> int:
        with APIBasedLLM("m", api_base_url=server.url, api_retries=0, **options) as model:
            found = model.generate([{"role": "user", "content": str(tokens)}], Sampling(max_tokens=MOST_TOKENS))
            return found.completion_tokens

    assert counted(MOST_TOKENS) == MOST_TOKENS
    for options, most in (({}, MOST_TOKENS), ({"max_tokens": None, "max_completion_tokens": 500}, 500)):
        assert counted(most, api_extra_body=options) == most
        with pytest.raises(AnswerError, match="cannot be true: completion_tokens must be a whole number from 0 to"):
            counted(2 * most, api_extra_body=options)


@pytest.mark.parametrize(
    "metrics",
    [
        {"num_spec_tokens": 1, "acceptance_histogram": [0, 2_000_000_000], "num_draft_tokens": 2_000_000_000},
        {"num_spec_tokens": 1, "acceptance_histogram": [2_000_000_000, -1_999_999_999], "num_draft_tokens": 1},
        {"num_spec_tokens": 10**12, "acceptance_histogram": [1], "num_draft_tokens": 10**12},
        {"per_step_accepted": [10**12], "per_step_drafted": [10**12]},
        {"per_step_accepted": [5], "per_step_drafted": [2]},
        {"per_step_accepted": [-5], "per_step_drafted": [2]},
        {"per_step_accepted": [60_000, 2], "per_step_drafted": [60_000, 2]},
        {"per_step_accepted": [True], "per_step_drafted": [1]},
        {"per_step_accepted": [1.0], "per_step_drafted": [1.5]},
    ],
)
def test_acceptance_that_no_answer_has_takes_no_memory(serve: Serve, metrics: dict[str, Any]) -> None:
    more = f', "metrics": {{"speculative_decoding": {json.dumps(metrics)}}}'
    server = serve(lambda prompt, count: streamed(more=more))
    tracemalloc.start()
    try:
        with pytest.raises(AnswerError) as caught:
            ask(server)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert [kind for _, kind in caught.value.failures] == ["implausible number"]


def test_an_endless_stream_ends_at_what_the_answer_can_have(serve: Serve) -> None:
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 60_000 + b'"}}]}\n\n'
    server = serve(
        lambda prompt, count: response(event * 60, headers="Content-Type: text/event-stream\r\n", chunked=1 << 16)
    )
    with pytest.raises(AnswerError, match="the server sends more than an answer can hold"):
        ask(server)
    assert Most.of({"max_tokens": MOST_TOKENS}, 100).stream < 60 * 60_000


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        *(("3", 3.0), ("-1", 0.0), ("", None), ("inf", None), ("nan", None), ("x", None), ("1e308", None)),
        *((HUGE, None), ("999999999999", None), ("Fri, 01 Jan 999999999999 00:00:00 GMT", None), ("," * 99, None)),
    ],
)
def test_a_pause_is_a_number_of_seconds(value: str, wait: float | None) -> None:
    """A server that asks for an endless one would never be asked again."""
    assert of_status(429, {"retry-after": value}, b"").wait == wait


def test_who_asks_for_a_pause_without_end_is_asked_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.01)
    headers = "Retry-After: Fri, 01 Jan 999999999999 00:00:00 GMT\r\n"
    server = serve(lambda prompt, count: streamed() if count else refusal("429 No", headers=headers))
    with APIBasedLLM("m", api_base_url=server.url) as model:
        found = model.generate([{"role": "user", "content": "x"}], Sampling(max_tokens=8))
    assert (found.text, [kind for _, kind in found.trace.failures]) == ("good", ["rate limit"])
