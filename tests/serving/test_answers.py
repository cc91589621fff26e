"""Answers of ``specdec serve`` equal those of the engine, streamed or whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.specdec import AutoregressiveLLM
from ianvs_specdec.common.errors import ContextWindowError
from ianvs_specdec.common.types import Completion, Message, Sampling

from .conftest import CYCLE, Server, serving

TINY = {"model": "tiny"}


def ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def engine(tiny: Path) -> AutoregressiveLLM:
    llm = AutoregressiveLLM(str(tiny))
    llm.load()
    return llm


def stream(server: Server, **request: Any) -> tuple[str, Any, list[Any]]:
    """Text, last chunk, all chunks."""
    chunks = list(server.client().chat.completions.create(stream=True, **request))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    return "".join(pieces), chunks[-1], chunks


def counted(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def counted_by(completion: Completion) -> tuple[int, int, int]:
    prompt, output = completion.prompt_tokens, completion.completion_tokens
    return prompt, output, prompt + output


@pytest.mark.parametrize(
    ("request_options", "sampling"),
    [
        ({"max_completion_tokens": 5}, Sampling(max_tokens=5)),
        (
            {"temperature": 0.8, "top_p": 0.9, "seed": 7, "extra_body": {"top_k": 40, "repetition_penalty": 1.2}},
            Sampling(24, 0.8, 0.9, 40, 1.2, 7),
        ),
        ({"temperature": 1, "seed": -3, "stop": ["Z", "q"]}, Sampling(24, 1.0, seed=-3, stop=("Z", "q"))),
        ({"n": 1, "user": "me", "logprobs": False, "extra_body": {"top_k": -1}}, Sampling(max_tokens=24)),
    ],
)
def test_server_answers_as_the_engine(
    server: Server, engine: AutoregressiveLLM, request_options: dict[str, Any], sampling: Sampling
) -> None:
    own = engine.generate(ask("hello"), sampling)
    whole = server.client().chat.completions.create(messages=ask("hello"), **TINY, **request_options)
    assert whole.choices[0].message.content == own.text
    assert whole.choices[0].finish_reason == own.finish_reason
    assert counted(whole.usage) == counted_by(own)
    options = {"stream_options": {"include_usage": True}, **request_options}
    text, last, _ = stream(server, messages=ask("hello"), **TINY, **options)
    assert text == own.text
    assert counted(last.usage) == counted_by(own)


def test_all_messages_reach_the_engine(server: Server, engine: AutoregressiveLLM) -> None:
    seen: list[Message] = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    sent: list[Any] = [dict(message) for message in seen]
    sent[0]["role"] = "developer"
    sent[1]["content"] = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    sent[2] |= {"refusal": None, "annotations": []}
    own = engine.generate(seen, Sampling(max_tokens=24))
    answer = server.client().chat.completions.create(messages=sent, **TINY)
    assert answer.choices[0].message.content == own.text
    assert answer.usage.prompt_tokens == own.prompt_tokens


def test_specdec_details(server: Server, engine: AutoregressiveLLM) -> None:
    own = engine.generate(ask("count"), Sampling(max_tokens=24))
    trace = own.trace.to_json()
    expected = {"steps": trace["steps"], "token_ids": own.token_ids, "near_ties": trace["near_ties"], "truncated": 0}
    request = {**TINY, "messages": ask("count")}
    assert server.chat({**request, "specdec": True})[2]["specdec"] == expected
    assert "specdec" not in server.chat(request)[2]
    _, last, chunks = stream(server, messages=ask("count"), **TINY, extra_body={"specdec": True})
    assert last.specdec == expected
    assert last.usage.completion_tokens == len(own.token_ids)
    assert not any(hasattr(chunk, "specdec") for chunk in chunks[:-1])


def test_too_long_prompt_is_rejected(server: Server) -> None:
    import openai

    before = server.metrics()
    for streamed in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            server.client().chat.completions.create(messages=ask("long " * 2000), stream=streamed, **TINY)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        assert "leaves no room in the model's context window of 512" in str(caught.value)
    after = server.metrics()
    assert after["requests_total.rejected"] - before["requests_total.rejected"] == 2
    assert after["requests_total.failed"] == before["requests_total.failed"]
    assert server.chat({**TINY, "messages": ask("short")})[2]["truncated_prompt_tokens"] == 0


def test_truncated_prompt_is_reported(tiny: Path, tmp_path: Path) -> None:
    long = ask("long " * 200)
    with AutoregressiveLLM(str(tiny), truncate_prompts=True) as engine:
        own = engine.generate(long, Sampling(max_tokens=8))
    assert own.truncated
    with serving(tmp_path, "--model", str(tiny), "--truncate-prompts") as server:
        request = {**TINY, "messages": long, "max_tokens": 8}
        answer = server.chat({**request, "specdec": True})[2]
        assert answer["specdec"]["truncated"] == answer["truncated_prompt_tokens"] == own.truncated
        assert answer["usage"]["prompt_tokens"] == own.prompt_tokens
        assert server.chat(request)[2]["truncated_prompt_tokens"] == own.truncated
        told = [getattr(chunk, "truncated_prompt_tokens", None) for chunk in stream(server, **request)[2]]
        assert told.count(own.truncated) == 1
        for options in ({}, {"api_extra_body": {"specdec": True}}):
            with APIBasedLLM("tiny", api_base_url=server.url, **options) as far:
                found = far.generate(long, Sampling(max_tokens=8))
                assert (found.text, found.truncated) == (own.text, own.truncated)
                assert far.generate(ask("short"), Sampling(max_tokens=8)).truncated == 0
        assert server.metrics()["truncated_prompts_total"] == 5


def test_context_error_passes_through_api_backend(server: Server, tmp_path: Path) -> None:
    with (
        APIBasedLLM("tiny", api_base_url=server.url) as far,
        pytest.raises(ContextWindowError, match=r"refused the request: status 400: .* leaves no room") as caught,
    ):
        far.generate(ask("long " * 2000), Sampling(max_tokens=8))
    assert [kind for _, kind in caught.value.failures] == ["context window"]
    with serving(tmp_path, "--model", "tiny", "--backend", "api", "--set", f"api_base_url={server.url}") as before:
        status, _, body = before.chat({**TINY, "messages": ask("long " * 2000)})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("usage", [True, False])
def test_stream_format(server: Server, usage: bool) -> None:
    body = {**TINY, "messages": ask("x"), "max_tokens": 4, "stream": True, "stream_options": {"include_usage": usage}}
    status, headers, text = server.request("POST", "/v1/chat/completions", body)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    events = text.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") and "\n" not in event for event in events[:-1])
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert (chunks[0]["model"], chunks[0]["object"]) == ("tiny", "chat.completion.chunk")
    if usage:
        assert chunks[-1]["choices"] == []
        assert chunks.pop()["usage"]["completion_tokens"] == 4
    assert not any("usage" in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "length")
    assert all(choice["delta"].keys() == {"content"} and choice["delta"]["content"] for choice in choices[1:-1])
    assert {choice["finish_reason"] for choice in choices[:-1]} == {None}


def test_metrics_add_up(server: Server) -> None:
    before = server.metrics()
    answers = [server.chat({**TINY, "messages": ask(text), "specdec": True})[2] for text in ("a", "bb", "ccc")]
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after}
    steps = [step for answer in answers for step in answer["specdec"]["steps"]]
    assert grown["requests_total.completed"] == 3
    assert grown["prompt_tokens_total"] == sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert grown["completion_tokens_total"] == sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert grown["steps_total"] == len(steps)
    for index, name in enumerate(("drafted_tokens", "accepted_tokens", "emitted_tokens")):
        assert grown[f"{name}_total"] == grown[f"engine_{name}_total"] == sum(step[index] for step in steps)
    assert grown["engine_verified_tokens_total"] == sum(step[3] for step in steps)
    assert grown["engine_verifications_total"] == len(steps)
    # One after the other, no two share a step; each prompt takes one of its own.
    assert grown["engine_steps_total"] == len(steps) + 3
    # Every answer has its first chunk, here of one token, and a time for each token after it.
    assert grown["inter_token_seconds_count"] == grown["completion_tokens_total"] - 3
    for name in ("time_to_first_token", "request", "queue"):
        assert grown[f"{name}_seconds_count"] == 3
    whole = grown["time_to_first_token_seconds_sum"] + grown["inter_token_seconds_sum"]
    assert whole == pytest.approx(grown["request_seconds_sum"], rel=1e-3)
    assert grown["queue_seconds_sum"] < grown["time_to_first_token_seconds_sum"]
    assert after["model_info.autoregressive.tiny"] == 1
    assert after["model_memory_bytes"] > 0


def test_prediction_and_whole_characters(narrow: Server) -> None:
    said = CYCLE * 6
    before = narrow.metrics()
    request = {"model": "endless", "messages": ask("say it"), "max_tokens": len(said.encode())}
    prediction = {"type": "content", "content": [{"type": "text", "text": said}]}
    plain = narrow.chat({**request, "specdec": True})[2]
    predicted = narrow.chat({**request, "specdec": True, "prediction": prediction})[2]
    for answer in (plain, predicted):
        assert answer["choices"][0]["message"]["content"] == said
        assert answer["usage"]["completion_tokens"] == len(said.encode())
    accepted = [sum(step[1] for step in answer["specdec"]["steps"]) for answer in (plain, predicted)]
    assert accepted[0] == 0
    assert accepted[1] > len(said.encode()) / 2
    grown = {name: now - before.get(name, 0.0) for name, now in narrow.metrics().items()}
    assert grown["accepted_tokens_total"] == accepted[1]
    # Tokens of one step share its time.
    whole = grown["time_to_first_token_seconds_sum"] + grown["inter_token_seconds_sum"]
    assert whole == pytest.approx(grown["request_seconds_sum"], rel=1e-3)
    # One byte a token: a character is sent when its last byte is there.
    text, _, chunks = stream(narrow, **request)
    assert text == said
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-1]] == list(said)
