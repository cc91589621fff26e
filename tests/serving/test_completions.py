"""``/v1/completions``, and parameters of load tests and other clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import CHAT_TEMPLATE, build_model

from .conftest import CYCLE, Server, build_endless, serving

TEXT = "one two one two"


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Any:
    """The model and its tokenizer, as transformers has them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)


def continued(reference: Any, ids: list[int], tokens: int) -> str:
    import torch

    model, tokenizer = reference
    output = model.generate(torch.tensor([ids]), max_new_tokens=tokens, do_sample=False)
    text: str = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
    return text


def test_completion_continues_the_prompt(server: Server, reference: Any) -> None:
    _, tokenizer = reference
    ids, create = tokenizer(TEXT)["input_ids"], server.client().completions.create
    expected = continued(reference, ids, 12)
    answer = create(model="tiny", prompt=TEXT, max_tokens=12)
    assert (answer.object, answer.choices[0].text) == ("text_completion", expected)
    assert answer.usage.prompt_tokens == len(ids)
    assert create(model="tiny", prompt=ids, max_tokens=12).choices[0].text == expected
    assert create(model="tiny", prompt=TEXT, max_tokens=12, echo=True).choices[0].text == TEXT + expected
    stop = expected[5:8]
    assert create(model="tiny", prompt=TEXT, max_tokens=12, stop=stop).choices[0].text == expected.partition(stop)[0]


def test_several_prompts_and_choices(server: Server) -> None:
    create = server.client().completions.create
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 1.0}
    alone = [create(prompt=prompt, seed=seed, **asked).choices[0].text for prompt in (TEXT, "three") for seed in (7, 8)]
    assert alone[0] != alone[1]
    together = create(prompt=[TEXT, "three"], n=2, seed=7, **asked)
    assert [choice.text for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert together.usage.completion_tokens == 32
    assert together.usage.prompt_tokens == len(TEXT.encode()) + len("three")
    texts, last = [""] * 4, None
    for chunk in create(
        prompt=[TEXT, "three"], n=2, seed=7, stream=True, stream_options={"include_usage": True}, **asked
    ):
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == alone
    assert last is not None
    assert last.usage == together.usage


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo_scores_the_prompt(server: Server, reference: Any, max_tokens: int) -> None:
    import torch

    model, tokenizer = reference
    # Longer than one step computes.
    ids = tokenizer(TEXT * 9)["input_ids"]
    answer = server.client().completions.create(
        model="tiny", prompt=ids, echo=True, logprobs=2, max_tokens=max_tokens, temperature=0
    )
    told, choice = answer.choices[0].logprobs, answer.choices[0]
    text = "" if max_tokens == 0 else continued(reference, ids, max_tokens)
    assert choice.text == TEXT * 9 + text
    assert "".join(told.tokens) == choice.text
    assert answer.usage.completion_tokens == max_tokens
    with torch.no_grad():
        exact = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = [float(exact[place, token]) for place, token in enumerate(ids[1:])]
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    assert told.token_logprobs[1 : len(ids)] == pytest.approx(own, abs=1e-3)
    assert len(told.token_logprobs) == len(ids) + max_tokens
    for place, top in enumerate(told.top_logprobs[1 : len(ids)]):
        assert max(top.values()) == pytest.approx(float(exact[place].max()), abs=1e-3)
        # By this, clients tell whether a continuation is the greedy one.
        greedy = int(exact[place].argmax()) == ids[place + 1]
        assert (told.token_logprobs[place + 1] == max(top.values())) == greedy
    assert [choice.text[place : place + 1] for place in told.text_offset[:5]] == told.tokens[:5]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True, "logprobs": 0, "n": 2}, "n"),
        ({"echo": True, "max_tokens": False}, "max_tokens"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": [1, 2**70]}, "prompt"),
    ],
)
def test_invalid_completion_parameters(server: Server, change: dict[str, Any], param: str) -> None:
    import json

    status, _, body = server.request("POST", "/v1/completions", {"model": "tiny", "prompt": TEXT, **change})
    assert (status, json.loads(body)["error"]["param"]) == (400, param)


def test_choices_are_rejected_together(narrow: Server) -> None:
    import json

    body = {"model": "endless", "max_tokens": 5}
    for more in ({"prompt": ["a"] * 4}, {"prompt": "a", "n": 4}):
        # There is never room for these.
        status, headers, text = narrow.request("POST", "/v1/completions", {**body, **more})
        assert (status, "retry-after" in headers) == (400, False)
        assert json.loads(text)["error"]["param"] == ("n" if "n" in more else "prompt")
    busy = narrow.connect()
    headers = {"Content-Type": "application/json"}
    busy.request("POST", "/v1/completions", json.dumps({**body, "prompt": "a", "max_tokens": 90_000}), headers)
    narrow.wait_for(in_flight=1)
    assert narrow.request("POST", "/v1/completions", {**body, "prompt": ["a"] * 3})[0] == 429
    narrow.wait_for(queue_length=0)
    busy.close()
    narrow.idle()


def test_echo_without_logprobs(tiny: Path) -> None:
    """Whatever the settings say: those of the output alone would be read as the prompt's."""
    from ianvs_specdec.backends import AutoregressiveLLM
    from ianvs_specdec.common.types import Hints, Sampling
    from ianvs_specdec.serving.requests import parse_completion

    settings = Sampling(max_tokens=3, logprobs=True)
    asked = parse_completion(b'{"model": "m", "prompt": "a", "echo": true}', ("m",), settings)
    with AutoregressiveLLM(str(tiny)) as llm:
        llm.load()
        assert asked.ask(llm, None, Hints()).trace.confidence is None


def test_unsupported_back_ends() -> None:
    from ianvs_specdec.backends import APIBasedLLM
    from ianvs_specdec.backends.huggingface import HuggingfaceLLM
    from ianvs_specdec.common.types import Hints, Sampling
    from ianvs_specdec.serving.protocol import RequestError
    from ianvs_specdec.serving.requests import parse_chat, parse_completion

    api = APIBasedLLM("m", api_base_url="http://127.0.0.1:9/v1")
    plain = parse_completion(b'{"model": "m", "prompt": "a"}', ("m",), Sampling())
    with pytest.raises(RequestError, match="the back end api takes chats only"):
        plain.ask(api, None, Hints())
    likely = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 2}'
    chat = parse_chat(likely, ("m",), Sampling())
    for llm in (HuggingfaceLLM("m"), api):
        with pytest.raises(RequestError, match=f"the back end {llm.backend} has no log-probabilities of alternatives"):
            chat.ask(llm, None, chat.hints)


def test_error_advice_fits_the_request(server: Server) -> None:
    body = {"model": "tiny", "prompt": "a" * 600}
    for scored in (False, True):
        answer = server.request("POST", "/v1/completions", {**body, "echo": scored, "logprobs": 0})[2]
        assert ("truncate_prompts" in answer.decode()) != scored
    least = {**body, "echo": True, "max_tokens": 0, "min_tokens": 4}
    assert b"max_tokens (0)" in server.request("POST", "/v1/completions", least)[2]


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
