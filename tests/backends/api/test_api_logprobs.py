"""Token probabilities from a server with OpenAI's protocol: what is asked for, what is made of it, and what it says
when the server does not tell them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Message, Sampling
from ianvs_specdec.plugin.models import EdgeModel
from tests.support.api_server import Reply, answer, serving
from tests.support.servers import response

HELLO: list[Message] = [{"role": "user", "content": "hello"}]
ASKED = Sampling(max_tokens=9, logprobs=True)
Token = dict[str, Any]


def token(text: str, probability: float, *others: float, data: bytes | None = None) -> Token:
    top = [{"token": "?", "logprob": math.log(p), "bytes": None} for p in (probability, *others)]
    told = list(text.encode() if data is None else data)
    return {"token": text, "logprob": math.log(probability), "bytes": told, "top_logprobs": top}


def streamed(*tokens: Token, text: str | None = None, counted: int | None = None) -> bytes:
    """Two tokens a chunk, as servers that speculate send them."""
    choices: list[dict[str, Any]] = []
    for start in range(0, len(tokens), 2):
        chunk = list(tokens[start : start + 2])
        content = b"".join(bytes(one["bytes"] or one["token"].encode()) for one in chunk).decode("utf-8", "ignore")
        choices.append({"delta": {"content": content}, "logprobs": {"content": chunk}})
    if text is not None:
        choices = [{"delta": {"content": text}, "logprobs": {"content": list(tokens)}}]
    choices.append({"delta": {}, "finish_reason": "stop", "logprobs": None})
    usage = {"prompt_tokens": 5, "completion_tokens": len(tokens) if counted is None else counted}
    chunks = [*({"choices": [{"index": 0, **choice}]} for choice in choices), {"choices": [], "usage": usage}]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return response(events.encode(), headers="Content-Type: text/event-stream\r\n", chunked=50)


def ask(reply: Reply, sampling: Sampling = ASKED, **options: Any) -> tuple[Completion, dict[str, Any]]:
    with serving() as serve:
        server = serve(reply)
        with APIBasedLLM("m", api_base_url=server.url, api_retries=0, **options) as llm:
            return llm.generate(HELLO, sampling), server.bodies[0]


def test_every_token_s_figures_come_from_the_likeliest() -> None:
    tokens = [token("The ", 0.5, 0.25), token("river ", 0.75, 0.125), token("Stirn", 0.9)]
    completion, body = ask(lambda *_: streamed(*tokens, counted=4))
    assert (body["logprobs"], body["top_logprobs"]) == (True, TOP)
    told = completion.trace.confidence or []
    assert [math.exp(logprob) for logprob, _, _ in told] == pytest.approx([0.5, 0.75, 0.9])
    assert [margin for _, _, margin in told] == pytest.approx([0.25, 0.625, 0.8])
    assert told[0][1] == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert completion.trace.characters == [4, 6, 5]
    assert completion.text == "The river Stirn"
    assert completion.completion_tokens == 4, "what ended the output is counted, and nothing told of it"


def test_they_are_not_asked_for_unless_wanted() -> None:
    completion, body = ask(lambda *_: answer("The river"), Sampling(max_tokens=9))
    assert not {"logprobs", "top_logprobs"} & body.keys()
    assert completion.trace.confidence is None


def test_tokens_that_are_parts_of_a_character_add_it_once() -> None:
    euro = "€".encode()
    tokens = [token("a", 0.9), token("x", 0.9, data=euro[:1]), token("x", 0.9, data=euro[1:]), token("b", 0.9)]
    completion, _ = ask(lambda *_: streamed(*tokens, text="a€b"))
    assert completion.trace.characters == [1, 0, 1, 1]


def test_where_tokens_are_not_the_text_no_place_is_told() -> None:
    completion, _ = ask(lambda *_: streamed(token("<a>", 0.9), text="something else"))
    assert len(completion.trace.confidence or ()) == 1
    assert completion.trace.characters is None


def without_alternatives(text: str) -> Token:
    return {**token(text, 0.9), "top_logprobs": []}


def accepted(text: str, *others: float) -> Token:
    """As servers report a draft's token that they accepted."""
    return {**token(text, 1.0), "top_logprobs": [{"token": "?", "logprob": logprob} for logprob in others]}


@pytest.mark.parametrize(
    ("reply", "lack"),
    [
        (answer("The river"), "the log-probabilities"),
        (streamed(without_alternatives("a")), "top_logprobs"),
        (streamed(accepted("The"), accepted(" river")), "the log-probabilities of its tokens, which are all 0"),
        (streamed(accepted("The", 0.0), accepted(" river", 0.0, -9999.0)), "which are all 0"),
        (streamed(accepted("The", 0.0, -2.0), accepted(" river", -0.5, -2.0)), "which are all 0"),
    ],
)
def test_a_server_that_does_not_tell_them_is_one_message(reply: bytes, lack: str) -> None:
    with pytest.raises(UserError, match=rf"cannot be used: it does not tell .*{lack}.*logprobs: true") as error:
        ask(lambda *_: reply)
    assert "\n" not in str(error.value)


def test_an_answer_that_is_certain_is_believed() -> None:
    told = ask(lambda *_: streamed(accepted("B", 0.0, -21.5, -23.0)))[0].trace.confidence
    assert told == [(0.0, pytest.approx(0, abs=1e-6), pytest.approx(1))]
    told = ask(lambda *_: streamed(accepted("The", 0.0), token(" river", 0.5)))[0].trace.confidence
    assert [own for own, _, _ in told or ()] == [0.0, math.log(0.5)]


@pytest.mark.parametrize("content", [[{"token": "a"}], [{"token": "a", "logprob": "x"}], ["a"], 7])
def test_what_is_no_list_of_tokens_is_a_broken_stream(content: Any) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": content}}]}
    events = f"data: {json.dumps(chunk)}\n\n".encode()
    with pytest.raises(UserError, match=r"no chunk of a chat completion|must be a number from"):
        ask(lambda *_: response(events, headers="Content-Type: text/event-stream\r\n", chunked=50))


def test_they_are_in_the_response(job: Path) -> None:
    with serving() as serve:
        server = serve(lambda *_: streamed(token("The answer is ", 0.9), token("B", 0.6, 0.3)))
        model = EdgeModel(model="m", backend="api", api_base_url=server.url, logprobs=True)
        found = model.predict({"query": "q", "gold": "B", "index": 0})
        model.cleanup()
    trace = found["turns"][0]["trace"]
    assert trace["confidence"][1] == (pytest.approx(math.log(0.6), abs=1e-5), pytest.approx(0.898, abs=1e-2), 0.3)
    assert trace["characters"] == [14, 1]
