"""Thoughts are in separate fields, in whole answers and in streams."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM, AutoregressiveLLM
from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.serving.reasoning import ReasoningParser
from tests.support.models import CHAT_TEMPLATE, build_model

from .conftest import Server, pairs, serving, write_successors

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 40}
OPENED = CHAT_TEMPLATE + "{% if enable_thinking is not false %}{{ '<think>\\n' }}{% endif %}"


def build_thinking(folder: Path, *, special: bool) -> Path:
    """A model that thinks "ma" and answers "B": in a thought that the prompt opens, or between special tokens."""
    from transformers import AutoTokenizer

    build_model(folder, chat_template=CHAT_TEMPLATE if special else OPENED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]} if special else {})
    tokenizer.save_pretrained(folder)
    opened, closed = (["<think>"], ["</think>"]) if special else (["\u010a"], [*"</think>"])
    ids = tokenizer.convert_tokens_to_ids([*opened, *"ma", *closed, "B"])
    end = tokenizer.eos_token_id
    first = ids[0] if special else ids[-1]
    return write_successors(folder, dict.fromkeys(range(260), first) | pairs([*ids, end]), 260)


Thinking = tuple[bool, Path, Server]


def streamed(server: Server, **more: Any) -> tuple[list[dict[str, Any]], Any]:
    answer = server.client().chat.completions.create(
        **BODY, **more, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(answer)
    return [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices], chunks[-1].usage


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special"])
def thinking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinking]:
    """Whether tags are special tokens, the model's folder, its server."""
    folder = tmp_path_factory.mktemp("thinking")
    model = build_thinking(folder / "m", special=request.param)
    with serving(folder, "--model", str(model)) as server:
        yield request.param, model, server


def test_reasoning_is_a_separate_field(thinking: Thinking) -> None:
    special, _, server = thinking
    status, _, answer = server.chat(BODY)
    assert status == 200
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("ma", "ma", "B")
    thought = 4 if special else 10
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
    deltas, usage = streamed(server)
    for name, text in (("reasoning_content", "ma"), ("reasoning", "ma"), ("content", "B")):
        assert "".join(delta.get(name) or "" for delta in deltas) == text
    assert usage.completion_tokens_details.reasoning_tokens == thought
    chunks = list(server.client().chat.completions.create(**BODY, n=2, stream=True))
    for index in range(2):
        own = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices[0].index == index]
        assert own[0]["role"] == "assistant"
        assert [delta.get("reasoning") for delta in own if delta.get("reasoning")]
        assert "".join(delta.get("content") or "" for delta in own) == "B"
    both = server.chat({**BODY, "n": 2})[2]
    assert [choice["message"] for choice in both["choices"]] == [message] * 2
    assert both["usage"]["completion_tokens"] == 2 * answer["usage"]["completion_tokens"]
    assert both["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * thought
    assert both["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    cut = server.chat({**BODY, "max_tokens": 3})[2]["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")
    if not special:
        plain = server.chat({**BODY, "chat_template_kwargs": {"enable_thinking": False}})[2]
        assert plain["choices"][0]["message"] == {"role": "assistant", "content": "B"}
        assert "completion_tokens_details" not in plain["usage"]


def test_api_backend_gets_the_whole_text(thinking: Thinking) -> None:
    """The same text, reasoning tokens and chunks as the model in the process."""
    special, model, server = thinking
    # Without the end token, which has no text.
    sampling = Sampling(max_tokens=5 if special else 11, logprobs=True)
    with AutoregressiveLLM(str(model)) as engine:
        own = engine.generate(BODY["messages"], sampling)
    with APIBasedLLM("m", api_base_url=server.url, api_extra_body={"specdec": True}) as api:
        far = api.generate(BODY["messages"], sampling)
    whole = server.chat({**BODY, "specdec": True})[2]
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": own.text}
    assert (far.text, far.trace.characters) == (own.text, own.trace.characters)
    assert far.trace.thinking == own.trace.thinking
    assert [tokens for _, tokens in far.trace.chunks] == [tokens for _, tokens in own.trace.chunks]


CHANNEL = "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>"


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nhm\n</think>\n\nB. Haja", "hm", "B. Haja"),
        ('\n<think>hm "B"</think>B <think> c', 'hm "B"', "\nB <think> c"),
        ("<think>a\n\n\nb\r\n\n</think>\nB", "a\n\n\nb", "B"),
        ("<think></think>\n\nB", "", "B"),
        ("<think>I close with '</think>' or `<think>`</think>B", "I close with '</think>' or `<think>`", "B"),
        ("<think>f'</think>' or \u8bf4`</think>`", "f'</think>' or \u8bf4`</think>`", ""),
        ("<think>no end\n", "no end\n", ""),
        ("[THINK]x[/THINK]y", "x", "y"),
        ("\u25c1think\u25b7x\u25c1/think\u25b7y", "x", "y"),
        (f"{CHANNEL}commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>B", "a < bc", "B"),
        ("<|channel|>final<|constrain|>json<|message|>{}", "", "{}"),
        ("</think>B", "", "B"),
        ("<b>bold</b> <think>", "", "<b>bold</b> <think>"),
        ("`<think>` opens a thought", "", "`<think>` opens a thought"),
        ("", "", ""),
    ],
)
def test_split_does_not_depend_on_pieces(text: str, thought: str, answer: str) -> None:
    choice = random.Random(0)
    for attempt in range(200):
        cuts = sorted(choice.choices(range(len(text) + 1), k=attempt // 10)) if attempt else range(len(text))
        places = [0, *cuts, len(text)]
        stream = ReasoningParser()
        parts = [stream(text[start:end]) for start, end in itertools.pairwise(places)]
        parts.append(stream("", last=True))
        assert ["".join(part) for part in zip(*parts, strict=True)] == [thought, answer], cuts


def test_scorers_handle_quotation_before_end_tag() -> None:
    assert without_reasoning('<think>He said "no."</think>"No"') == '"No"'


def test_plain_answers_are_not_delayed() -> None:
    for first in ("A", "Here", "The", "1", '"', "\u00e9", " ", "\n\n"):
        assert ReasoningParser()(first) == ("", first)


@pytest.mark.parametrize("piece", ["\n", "\r\n", "<", "a", '"', "<|", "<|end|>"])
def test_long_thought_takes_linear_time(piece: str) -> None:
    stream = ReasoningParser()
    stream("<think>x")
    for _ in range(10_000):
        stream(piece)
    assert stream("y</think>B", last=True)[1] == "B"
