"""``/v1/completions``: prompts without a chat template, in all their forms, and the log-probabilities of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Server

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
