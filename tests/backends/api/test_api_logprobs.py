"""Token probabilities from a server with OpenAI's protocol: what is asked for, what is made of it, and the error where
the server returns none.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.plugin.models import EdgeModel
from tests.backends.api.conftest import ask, choice, llm, stream_of, usage
from tests.support.api_server import Serve, answer

Token = dict[str, Any]


def token(text: str, probability: float, *others: float, data: bytes | None = None) -> Token:
    top = [{"token": "?", "logprob": math.log(p), "bytes": None} for p in (probability, *others)]
    told = list(text.encode() if data is None else data)
    return {"token": text, "logprob": math.log(probability), "bytes": told, "top_logprobs": top}


def streamed(*tokens: Token, text: str | None = None, counted: int | None = None) -> bytes:
    """Two tokens a chunk, as servers that speculate send them."""
    chunks = []
    for start in range(0, len(tokens), 2 if text is None else len(tokens)):
        chunk = list(tokens[start : start + 2] if text is None else tokens)
        content = b"".join(bytes(one["bytes"] or one["token"].encode()) for one in chunk).decode("utf-8", "ignore")
        chunks.append(choice(text or content, logprobs={"content": chunk}))
    return stream_of(*chunks, choice(None, "stop", logprobs=None), usage(counted or len(tokens)))


def asked(serve: Serve, reply: bytes) -> tuple[Completion, dict[str, Any]]:
    """The answer and the request."""
    server = serve(lambda prompt, number: reply)
    with llm(server, api_retries=0) as model:
        return ask(model, max_tokens=9, logprobs=True), server.bodies[0]


def test_every_token_s_figures_come_from_the_likeliest(serve: Serve) -> None:
    tokens = [token("The ", 0.5, 0.25), token("river ", 0.75, 0.125), token("Stirn", 0.9)]
    completion, body = asked(serve, streamed(*tokens, counted=4))
    assert (body["logprobs"], body["top_logprobs"]) == (True, TOP)
    told = completion.trace.confidence or []
    assert [math.exp(logprob) for logprob, _, _ in told] == pytest.approx([0.5, 0.75, 0.9])
    assert [margin for _, _, margin in told] == pytest.approx([0.25, 0.625, 0.8])
    assert told[0][1] == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert completion.trace.characters == [4, 6, 5]
    assert completion.text == "The river Stirn"
    assert completion.completion_tokens == 4, "what ended the output is counted, and nothing told of it"


def test_tokens_that_are_parts_of_a_character_add_it_once(serve: Serve) -> None:
    euro = "€".encode()
    tokens = [token("a", 0.9), token("x", 0.9, data=euro[:1]), token("x", 0.9, data=euro[1:]), token("b", 0.9)]
    assert asked(serve, streamed(*tokens, text="a€b"))[0].trace.characters == [1, 0, 1, 1]
    unlike = asked(serve, streamed(token("<a>", 0.9), text="something else"))[0]
    assert len(unlike.trace.confidence or ()) == 1
    assert unlike.trace.characters is None


def accepted(text: str, *others: float) -> Token:
    """As servers report a draft's token that they accepted."""
    return {**token(text, 1.0), "top_logprobs": [{"token": "?", "logprob": logprob} for logprob in others]}


@pytest.mark.parametrize(
    ("reply", "lack"),
    [
        (answer("The river"), "the log-probabilities"),
        (streamed({**token("a", 0.9), "top_logprobs": []}), "top_logprobs"),
        (streamed(accepted("The"), accepted(" river")), "the log-probabilities of its tokens, which are all 0"),
        (streamed(accepted("The", 0.0, -2.0), accepted(" river", -0.5, -2.0)), "which are all 0"),
    ],
)
def test_a_server_that_does_not_tell_them_is_one_message(serve: Serve, reply: bytes, lack: str) -> None:
    with pytest.raises(UserError, match=rf"cannot be used: it does not return .*{lack}.*logprobs: true") as error:
        asked(serve, reply)
    assert "\n" not in str(error.value)


def test_an_answer_that_is_certain_is_believed(serve: Serve) -> None:
    told = asked(serve, streamed(accepted("B", 0.0, -21.5, -23.0)))[0].trace.confidence
    assert told == [(0.0, pytest.approx(0, abs=1e-6), pytest.approx(1))]
    told = asked(serve, streamed(accepted("The", 0.0), token(" river", 0.5)))[0].trace.confidence
    assert [own for own, _, _ in told or ()] == [0.0, math.log(0.5)]


@pytest.mark.parametrize("content", [[{"token": "a"}], ["a"], 7])
def test_what_is_no_list_of_tokens_is_a_broken_stream(serve: Serve, content: Any) -> None:
    with pytest.raises(UserError, match=r"no chat completion chunk"):
        asked(serve, stream_of(json.dumps(choice("a", logprobs={"content": content}))))


def test_they_are_in_the_response(job: Path, serve: Serve) -> None:
    server = serve(lambda *_: streamed(token("The answer is ", 0.9), token("B", 0.6, 0.3)))
    model = EdgeModel(model="m", backend="api", api_base_url=server.url, logprobs=True)
    found = model.predict({"query": "q", "gold": "B", "index": 0})
    model.cleanup()
    trace = found["turns"][0]["trace"]
    assert trace["confidence"][1] == (pytest.approx(math.log(0.6), abs=1e-5), pytest.approx(0.898, abs=1e-2), 0.3)
    assert trace["characters"] == [14, 1]
