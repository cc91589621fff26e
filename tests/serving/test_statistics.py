"""What vLLM's clients read beside answers: statistics of speculative decoding, tokens, the model's window."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM, AutoregressiveLLM
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.common.types import Message, Sampling

from .conftest import Server, serving

pytest.importorskip("starlette", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")

from starlette.requests import Request

from ianvs_specdec.serving.app import Service
from ianvs_specdec.serving.tokens import MOST_WAITING, token_routes

AGAIN: list[Message] = [{"role": "user", "content": "again and again and again"}]


@pytest.fixture(scope="module")
def drafting(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ["--model", str(endless), "--backend", "PromptLookup", "--length", "fixed:3"]
    with serving(tmp_path_factory.mktemp("drafting"), *arguments) as running:
        yield running


def test_statistics_of_speculation_in_the_names_of_vllm(drafting: Server) -> None:
    before = drafting.metrics()
    body = {"model": "endless", "messages": AGAIN, "max_tokens": 60, "specdec": True}
    answer = drafting.chat(body)[2]
    told = answer["metrics"]["speculative_decoding"]
    steps = [step for step in answer["specdec"]["steps"] if step[0]]
    drafted, accepted = sum(step[0] for step in steps), sum(step[1] for step in steps)
    assert accepted > 0
    assert told["num_spec_steps"] == sum(told["acceptance_histogram"]) == len(steps)
    assert (told["num_draft_tokens"], told["num_accepted_draft_tokens"]) == (drafted, accepted)
    assert sum(j * count for j, count in enumerate(told["acceptance_histogram"])) == accepted
    assert told["draft_acceptance_rate"] == accepted / drafted
    assert told["mean_acceptance_length"] == 1 + accepted / len(steps)
    after = drafting.metrics()

    def counted(name: str) -> float:
        return after[f"vllm:spec_decode_num_{name}"] - before.get(f"vllm:spec_decode_num_{name}", 0)

    assert counted("drafts_total.endless") == len(steps)
    assert counted("draft_tokens_total.endless") == drafted
    assert counted("accepted_tokens_total.endless") == accepted
    places = [counted(f"accepted_tokens_per_pos_total.endless.{place}") for place in range(3)]
    assert places == [sum(step[1] > place for step in steps) for place in range(3)]


def test_our_own_client_reads_them(drafting: Server) -> None:
    with APIBasedLLM("endless", api_base_url=drafting.url) as plain:
        read = plain.generate(AGAIN, Sampling(max_tokens=60)).trace.steps
    with APIBasedLLM("endless", api_base_url=drafting.url, api_extra_body={"specdec": True}) as full:
        exact = full.generate(AGAIN, Sampling(max_tokens=60)).trace.steps
    assert sum(step.accepted for step in exact) > 0
    for name in ("drafted", "accepted", "emitted"):
        assert sum(getattr(step, name) for step in read) == sum(getattr(step, name) for step in exact)


def test_tokens_of_texts_and_chats(server: Server, tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)

    def ask(path: str, **body: Any) -> Any:
        status, _, text = server.request("POST", path, body)
        return (status, json.loads(text))

    ids = tokenizer("one two")["input_ids"]
    window = server.client().models.retrieve("tiny").max_model_len
    assert ask("/tokenize", prompt="one two") == (200, {"count": len(ids), "max_model_len": window, "tokens": ids})
    assert ask("/tokenize", model=None, prompt="one two")[0] == 200
    assert ask("/detokenize", tokens=ids) == (200, {"prompt": "one two"})
    assert ask("/detokenize", tokens=[]) == (200, {"prompt": ""})
    chat = ask("/tokenize", model="tiny", messages=AGAIN)[1]
    answer = server.chat({"model": "tiny", "messages": AGAIN, "max_tokens": 1})[2]
    assert chat["count"] == len(chat["tokens"]) == answer["usage"]["prompt_tokens"]
    for special in (False, True):
        tokens = ask("/tokenize", prompt="one two", add_special_tokens=special)[1]["tokens"]
        assert tokens == tokenizer("one two", add_special_tokens=special)["input_ids"]
        text = ask("/detokenize", tokens=chat["tokens"])[1]["prompt"]
        tokens = ask("/tokenize", messages=AGAIN, add_special_tokens=special)[1]["tokens"]
        assert tokens == tokenizer(text, add_special_tokens=special)["input_ids"]
    assert ask("/tokenize", prompt=3)[1]["error"]["param"] == "prompt"
    assert ask("/tokenize", messages=AGAIN, tools=[{}])[1]["error"]["param"] == "tools"
    assert ask("/tokenize", tokens=ids)[1]["error"]["param"] == "tokens"
    assert ask("/detokenize", prompt="one two")[1]["error"]["param"] == "prompt"
    assert ask("/detokenize")[1]["error"]["param"] == "tokens"
    for number in (10**9, 2**70, -1):
        assert ask("/detokenize", tokens=[number])[1]["error"]["param"] == "tokens"
    assert ask("/tokenize", prompt="a" * (1 << 20))[0] == 413
    reserved = ask("/tokenize", messages=AGAIN, chat_template_kwargs={"messages": 1})
    assert reserved[1]["error"]["param"] == "chat_template_kwargs"
    assert json.loads(server.request("GET", "/version")[2]).keys() == {"version"}


def test_few_texts_wait_for_the_tokenizer(tiny: Path) -> None:
    """And only one is with it, which chats need as well."""
    go, at_work, most = threading.Event(), list[int](), 0

    class Held(Chat):
        def __init__(self) -> None:
            self.window = 8

        def encoded(self, *asked: Any, special: bool | None = None) -> list[int]:
            nonlocal most
            at_work.append(1)
            most = max(most, len(at_work))
            go.wait(60)
            at_work.pop()
            return [1]

    async def run() -> list[int]:
        llm = AutoregressiveLLM(str(tiny))
        llm._chat = Held()
        route = token_routes(llm, Service(("m",), Sampling(), "", 60.0, 1000))[0]

        async def ask() -> int:
            async def receive() -> Any:
                return {"type": "http.request", "body": b'{"prompt": "a"}'}

            scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
            return int((await route.endpoint(Request(scope, receive))).status_code)

        asked = [asyncio.create_task(ask()) for _ in range(MOST_WAITING + 1)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        return await asyncio.gather(*asked)

    assert sorted(asyncio.run(run())) == [200] * MOST_WAITING + [429]
    assert most == 1


def test_alternatives_of_each_token(server: Server) -> None:
    create = server.client().chat.completions.create
    body: dict[str, Any] = {"model": "tiny", "messages": AGAIN, "max_tokens": 6, "logprobs": True}
    for token in create(**body, top_logprobs=3).choices[0].logprobs.content:
        likely = [other.logprob for other in token.top_logprobs]
        assert len(likely) == 3
        assert likely == sorted(likely, reverse=True)
        # Greedy: it is the likeliest itself.
        assert likely[0] == token.logprob
    assert create(**body).choices[0].logprobs.content[0].top_logprobs == []
