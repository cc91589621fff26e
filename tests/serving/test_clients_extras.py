"""What load tests and other clients send beside the protocol: lengths are kept, what asks for nothing is accepted, and
the chat template gets its variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import CHAT_TEMPLATE, build_model

from .conftest import CYCLE, Server, build_endless, serving

HELLO = [{"role": "user", "content": "hello"}]
NOTHING: dict[str, Any] = {
    "user": "me",
    "metadata": {"a": "b"},
    "tools": [],
    "tool_choice": "auto",
    "n": 1,
    "logit_bias": {},
    "stop_token_ids": [],
    "min_p": 0.0,
    "top_k": -1,
    "min_tokens": 0,
    "frequency_penalty": 0,
    "best_of": 1,
    "skip_special_tokens": True,
    "add_special_tokens": False,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "truncate_prompt_tokens": None,
    "stop": [],
}
BESIDE_CONTENT: dict[str, Any] = {
    "type": "text",
    "reasoning_content": "hm",
    "tool_calls": None,
    "annotations": [],
}


def build_ending(folder: Path) -> Path:
    """The endless model, but for the end token that comes behind each cycle; forbidden, the next cycle does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_endless(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    (last,) = AutoTokenizer.from_pretrained(folder)(CYCLE[-1], add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model.lm_head.weight[model.config.eos_token_id, last] = 2.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ending")
    arguments = ["--model", str(build_ending(folder / "ending")), "--backend", "PromptLookup"]
    with serving(folder, *arguments) as running:
        yield running


@pytest.mark.parametrize(("stream", "temperature"), [(False, 0), (True, 1e-6)])
def test_min_tokens_and_ignore_eos(ending: Server, stream: bool, temperature: float) -> None:
    def ask(**extra: Any) -> tuple[int, str, str]:
        """Tokens, finish reason, text."""
        asked = {"model": "ending", "messages": HELLO, "temperature": temperature, "extra_body": extra}
        create = ending.client().chat.completions.create
        if not stream:
            answer = create(**asked)
            return answer.usage.completion_tokens, answer.choices[0].finish_reason, answer.choices[0].message.content
        *chunks, last = create(stream=True, stream_options={"include_usage": True}, **asked)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return last.usage.completion_tokens, chunks[-1].choices[0].finish_reason, text

    cycle, end, text = ask(max_tokens=90)
    assert (end, text) == ("stop", CYCLE)
    assert ask(max_tokens=90, min_tokens=1) == (cycle, end, text)
    # The cycle goes on without the end token, which comes where it may come again.
    assert ask(max_tokens=90, min_tokens=cycle) == (2 * (cycle - 1) + 1, "stop", 2 * CYCLE)
    assert ask(max_tokens=40, min_tokens=40)[:2] == (40, "length")
    tokens, end, text = ask(max_tokens=4 * cycle, ignore_eos=True)
    assert (tokens, end, text) == (4 * cycle, "length", 4 * CYCLE)


def test_parameters_without_effect_are_accepted(server: Server) -> None:
    plain = server.chat({"model": "tiny", "messages": HELLO})[2]["choices"]
    spoken = [{**HELLO[0], **BESIDE_CONTENT}]
    for change in ({**NOTHING}, {"messages": spoken}):
        status, _, body = server.chat({"model": "tiny", "messages": HELLO, **change})
        assert (status, body.get("choices")) == (200, plain), body


TEMPLATE = CHAT_TEMPLATE + "{{ mood }}{% if strftime_now('%Y') == '2024' %} in 2024{% endif %}"


def test_chat_template_kwargs(tmp_path: Path) -> None:
    model = build_model(tmp_path / "m", chat_template=TEMPLATE)
    arguments = ("--chat-template-kwargs", '{"mood": "calm"}', "--template-time", "2024-05-06")
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with serving(tmp_path, "--model", str(model), *arguments) as server:
        plain = server.chat(body)[2]["usage"]["prompt_tokens"]
        longer = server.chat({**body, "chat_template_kwargs": {"mood": "very calm"}})[2]["usage"]["prompt_tokens"]
        assert (plain, longer - plain) == (len("<user>x<assistant>calm in 2024"), len("very "))
        status, _, answer = server.chat({**body, "chat_template_kwargs": {"tools": []}})
        assert (status, answer["error"]["param"]) == (400, "chat_template_kwargs")
        assert "told the date" not in server.output


def test_chat_template_error(tmp_path: Path) -> None:
    refusing = "{% if mood %}{{ raise_exception('no moods, ' + strftime_now('%Y')[:2]) }}{% endif %}" + CHAT_TEMPLATE
    model = build_model(tmp_path / "m", chat_template=refusing)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with serving(tmp_path, "--model", str(model)) as server:
        status, _, answer = server.chat({**body, "chat_template_kwargs": {"mood": "calm"}})
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "no moods, 20" in answer["error"]["message"]
        assert server.chat(body)[0] == 200
        assert "the chat template uses today's date" in server.output
