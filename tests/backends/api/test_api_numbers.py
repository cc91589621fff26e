"""Servers that count what cannot be: nothing of it is believed, nothing grows by it, and the failure says where."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ianvs_specdec.backends.api.failures import of_status
from ianvs_specdec.common.errors import AnswerError
from tests.backends.api.conftest import ask, choice, llm, stream_of
from tests.support.api_server import Serve, refusal

MAX_TOKENS = 64
HUGE = "9" * 400
ABSURD = ("1e999", "NaN", HUGE, "9" * 5000, "1000000000000", "-1", "2.5", "true", '"7"')
"""What stands in place of a count, as JSON or what some servers take for it."""
IMPROBABLE = ("1e999", "NaN", "1e300", "500", HUGE, "true", '"7"')
THREE = '"prompt_tokens": 5, "completion_tokens": 3'
COUNTED = {
    "completion": {"usage": '"prompt_tokens": 5, "completion_tokens": {}'},
    "prompt": {"usage": '"prompt_tokens": {}, "completion_tokens": 3'},
    "cached": {"usage": f'{THREE}, "prompt_tokens_details": {{"cached_tokens": {{}}}}'},
    "reasoning": {"usage": f'{THREE}, "completion_tokens_details": {{"reasoning_tokens": {{}}}}'},
    "truncated": {"more": '"truncated_prompt_tokens": {}'},
    "steps": {"more": '"specdec": {"steps": [[3, 2, 2, {}]]}'},
    "token ids": {"more": '"specdec": {"token_ids": [1, 2, {}]}'},
    "near ties": {"more": '"specdec": {"near_ties": [[{}, 0.1]]}'},
    "SGLang": {
        "more": '"sglext": {"spec_tokens_details": {"spec_verify_ct": {}, "spec_num_proposed_drafts": 6, '
        '"spec_correct_drafts_histogram": [1, 1]}}'
    },
    "llama-server": {"more": '"timings": {"draft_n": {}, "draft_n_accepted": 1, "draft_rounds": 2}'},
}
LIKELY = {
    "confidence": {"more": '"specdec": {"confidence": [[{}, 0.1, 0.5]], "characters": [4]}'},
    "entropy": {"more": '"specdec": {"confidence": [[-0.1, {}, 0.5]], "characters": [4]}'},
    "token": {"piece": '{"token": "good", "logprob": {}, "top_logprobs": [{"token": "x", "logprob": -0.1}]}'},
    "likeliest": {"piece": '{"token": "good", "logprob": -0.1, "top_logprobs": [{"token": "x", "logprob": {}}]}'},
}


def streamed(*, usage: str = THREE, more: str = "", piece: str = "") -> bytes:
    """An answer of three tokens whose events are written as they are given."""
    told = f', "logprobs": {{"content": [{piece}]}}' if piece else ""
    return stream_of(
        f'{{"choices": [{{"index": 0, "delta": {{"content": "good"}}{told}}}]}}',
        choice(None, "stop"),
        f'{{"choices": [], "usage": {{{usage}}}{", " if more else ""}{more}}}',
    )


def check_refused(serve: Serve, reply: bytes, **sampling: Any) -> None:
    server = serve(lambda prompt, count: reply)
    with llm(server, api_retries=0) as model, pytest.raises(AnswerError) as caught:
        ask(model, max_tokens=MAX_TOKENS, **sampling)
    assert [kind for _, kind in caught.value.failures] == ["implausible number"]
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 600


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", COUNTED)
def test_a_count_is_one_that_the_request_can_have_led_to(serve: Serve, what: str) -> None:
    for number in ABSURD:
        check_refused(serve, streamed(**{name: text.replace("{}", number) for name, text in COUNTED[what].items()}))


@pytest.mark.parametrize("what", LIKELY)
def test_confidence_is_of_probabilities(serve: Serve, what: str) -> None:
    for number in IMPROBABLE:
        fields = {name: text.replace("{}", number) for name, text in LIKELY[what].items()}
        check_refused(serve, streamed(**fields), logprobs=True)


def test_the_bytes_of_a_token_are_no_number_of_bytes(serve: Serve) -> None:
    token = '{"token": "good", "logprob": -0.1, "bytes": 3000000000, "top_logprobs": [{"token": "x", "logprob": -0.1}]}'
    server = serve(lambda prompt, count: streamed(piece=token))
    with little_memory(), pytest.raises(AnswerError):
        ask(llm(server, api_retries=0), logprobs=True)


def test_more_tokens_than_were_asked_for_are_not_believed(serve: Serve) -> None:
    server = serve(lambda prompt, count: streamed(usage=f'"prompt_tokens": 5, "completion_tokens": {prompt}'))
    for options, most in (({}, MAX_TOKENS), ({"max_tokens": None, "max_completion_tokens": 500}, 500)):
        with llm(server, api_retries=0, api_extra_body=options) as model:
            assert ask(model, str(most), max_tokens=MAX_TOKENS).completion_tokens == most
            with pytest.raises(
                AnswerError, match="impossible value: completion_tokens must be a whole number from 0 to"
            ):
                ask(model, str(2 * most), max_tokens=MAX_TOKENS)


@pytest.mark.parametrize(
    "metrics",
    [
        {"num_spec_tokens": 1, "acceptance_histogram": [0, 2_000_000_000], "num_draft_tokens": 2_000_000_000},
        {"num_spec_tokens": 1, "acceptance_histogram": [2_000_000_000, -1_999_999_999], "num_draft_tokens": 1},
        {"num_spec_tokens": 10**12, "acceptance_histogram": [1], "num_draft_tokens": 10**12},
        {"per_step_accepted": [5], "per_step_drafted": [2]},
        {"per_step_accepted": [60_000, 2], "per_step_drafted": [60_000, 2]},
    ],
)
def test_acceptance_that_no_answer_has_takes_no_memory(serve: Serve, metrics: dict[str, Any]) -> None:
    with little_memory():
        check_refused(serve, streamed(more=f'"metrics": {{"speculative_decoding": {json.dumps(metrics)}}}'))


def test_an_endless_stream_ends_at_what_the_answer_can_have(serve: Serve) -> None:
    server = serve(lambda prompt, count: stream_of(*[choice("x" * 60_000)] * 60))
    with pytest.raises(AnswerError, match="the server sends more than an answer can hold"):
        ask(llm(server), max_tokens=MAX_TOKENS)


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


def test_who_asks_for_a_pause_without_end_is_asked_again(serve: Serve) -> None:
    headers = "Retry-After: Fri, 01 Jan 999999999999 00:00:00 GMT\r\n"
    server = serve(lambda prompt, count: streamed() if count else refusal("429 No", headers=headers))
    found = ask(llm(server))
    assert (found.text, [kind for _, kind in found.trace.failures]) == ("good", ["rate limit"])
