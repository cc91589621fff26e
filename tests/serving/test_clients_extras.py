"""What load tests and other clients send beside the protocol: lengths are kept, what asks for nothing is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
def test_an_answer_is_as_long_as_a_load_test_wants_it(ending: Server, stream: bool, temperature: float) -> None:
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


def test_what_asks_for_nothing_changes_nothing(server: Server) -> None:
    plain = server.chat({"model": "tiny", "messages": HELLO})[2]["choices"]
    spoken = [{**HELLO[0], **BESIDE_CONTENT}]
    for change in ({**NOTHING}, {"messages": spoken}):
        status, _, body = server.chat({"model": "tiny", "messages": HELLO, **change})
        assert (status, body.get("choices")) == (200, plain), body
