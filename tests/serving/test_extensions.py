"""Extensions of the protocol: log-probabilities, TLS, metrics of speculation, tokenizer endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.specdec import PromptLookupLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Message, Sampling
from ianvs_specdec.serving.metrics import Metrics
from tests.support.servers import make_certificate

from .conftest import Server, serving

CHAT: list[Message] = [{"role": "user", "content": "again and again and again"}]
SAMPLING = Sampling(max_tokens=24, temperature=1.0, seed=5, logprobs=True)
REQUEST: dict[str, Any] = {"model": "tiny", "messages": CHAT, "temperature": 1.0, "seed": 5, "logprobs": True}


@pytest.fixture(scope="module")
def home(tiny: Path) -> Completion:
    with PromptLookupLLM(str(tiny)) as engine:
        return engine.generate(CHAT, SAMPLING)


def check(choice: Any, home: Completion) -> None:
    content = choice.logprobs.content
    assert [token.logprob for token in content] == pytest.approx(
        [logprob for logprob, _, _ in home.trace.confidence or ()], abs=1e-4
    )
    assert "".join(token.token for token in content) == home.text
    assert all(bytes(token.bytes).decode() == token.token for token in content)


def test_logprobs_of_all_tokens(server: Server, home: Completion) -> None:
    client = server.client()
    check(client.chat.completions.create(**REQUEST).choices[0], home)
    chunks = [chunk for chunk in client.chat.completions.create(**REQUEST, stream=True) if chunk.choices]
    check(chunks[-1].choices[0], home)
    assert all(chunk.choices[0].logprobs is None for chunk in chunks[:-1])
    assert client.chat.completions.create(**{**REQUEST, "logprobs": False}).choices[0].logprobs is None


def test_api_backend_reads_logprobs(server: Server, home: Completion) -> None:
    with APIBasedLLM("tiny", api_base_url=server.url, api_extra_body={"specdec": True}) as model:
        far = model.generate(CHAT, SAMPLING)
    assert far.token_ids == home.token_ids
    assert far.trace.characters == home.trace.characters
    for told, own in zip(far.trace.confidence or (), home.trace.confidence or (), strict=True):
        assert told == pytest.approx(own, abs=1e-4)


def test_tls_certificate_is_verified(tiny: Path, tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    certificate, key = make_certificate(tmp_path / "own")
    other, _ = make_certificate(tmp_path / "other")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    question = [{"role": "user", "content": "again"}]
    with serving(tmp_path, "--model", str(tiny), *tls) as server:
        assert server.url.startswith("https://")
        given = {"api_base_url": server.url, "api_retries": 0}
        with APIBasedLLM("tiny", api_ca=str(certificate), **given) as model:
            assert model.generate(question, Sampling(max_tokens=4)).completion_tokens == 4
        with APIBasedLLM("tiny", api_ca=str(other), **given) as model, pytest.raises(UserError, match="api_ca names"):
            model.generate(question, Sampling(max_tokens=4))
    for file, reason in ((key, "no certificate"), (tmp_path / "none", "No such file")):
        with (
            APIBasedLLM("tiny", api_base_url="https://127.0.0.1:1/v1", api_ca=str(file)) as model,
            pytest.raises(UserError, match=f"api_ca.*{reason}"),
        ):
            model.generate(question, Sampling(max_tokens=4))


@pytest.fixture(scope="module")
def drafting(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ["--model", str(endless), "--backend", "PromptLookup", "--length", "fixed:3"]
    with serving(tmp_path_factory.mktemp("drafting"), *arguments) as running:
        yield running


def test_vllm_speculation_metrics(drafting: Server) -> None:
    before = drafting.metrics()
    body = {"model": "endless", "messages": CHAT, "max_tokens": 60, "specdec": True}
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


def test_api_backend_reads_speculation_metrics(drafting: Server) -> None:
    with APIBasedLLM("endless", api_base_url=drafting.url) as plain:
        read = plain.generate(CHAT, Sampling(max_tokens=60)).trace.steps
    with APIBasedLLM("endless", api_base_url=drafting.url, api_extra_body={"specdec": True}) as full:
        exact = full.generate(CHAT, Sampling(max_tokens=60)).trace.steps
    assert sum(step.accepted for step in exact) > 0
    for name in ("drafted", "accepted", "emitted"):
        assert sum(getattr(step, name) for step in read) == sum(getattr(step, name) for step in exact)


def test_tokenize_and_detokenize(server: Server, tiny: Path) -> None:
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
    chat = ask("/tokenize", model="tiny", messages=CHAT)[1]
    answer = server.chat({"model": "tiny", "messages": CHAT, "max_tokens": 1})[2]
    assert chat["count"] == len(chat["tokens"]) == answer["usage"]["prompt_tokens"]
    for special in (False, True):
        tokens = ask("/tokenize", prompt="one two", add_special_tokens=special)[1]["tokens"]
        assert tokens == tokenizer("one two", add_special_tokens=special)["input_ids"]
        text = ask("/detokenize", tokens=chat["tokens"])[1]["prompt"]
        tokens = ask("/tokenize", messages=CHAT, add_special_tokens=special)[1]["tokens"]
        assert tokens == tokenizer(text, add_special_tokens=special)["input_ids"]
    assert ask("/tokenize", prompt=3)[1]["error"]["param"] == "prompt"
    assert ask("/tokenize", messages=CHAT, tools=[{}])[1]["error"]["param"] == "tools"
    assert ask("/tokenize", tokens=ids)[1]["error"]["param"] == "tokens"
    assert ask("/detokenize", prompt="one two")[1]["error"]["param"] == "prompt"
    assert ask("/detokenize")[1]["error"]["param"] == "tokens"
    for number in (10**9, 2**70, -1):
        assert ask("/detokenize", tokens=[number])[1]["error"]["param"] == "tokens"
    assert ask("/tokenize", prompt="a" * (1 << 20))[0] == 413
    reserved = ask("/tokenize", messages=CHAT, chat_template_kwargs={"messages": 1})
    assert reserved[1]["error"]["param"] == "chat_template_kwargs"
    assert json.loads(server.request("GET", "/version")[2]).keys() == {"version"}


def test_top_logprobs(server: Server) -> None:
    create = server.client().chat.completions.create
    body: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 6, "logprobs": True}
    for token in create(**body, top_logprobs=3).choices[0].logprobs.content:
        likely = [other.logprob for other in token.top_logprobs]
        assert len(likely) == 3
        assert likely == sorted(likely, reverse=True)
        # Greedy: it is the likeliest itself.
        assert likely[0] == token.logprob
    assert create(**body).choices[0].logprobs.content[0].top_logprobs == []


def test_emulation_metrics() -> None:
    told = {"machine": "a stated one", "model": "m", "method": "eagle", "scale": 25.0, "steps": 7, "overruns": 2}
    for emulation in (told, None):
        metrics = Metrics("model", "EagleSpecDec")
        metrics.watch_emulation(lambda emulation=emulation: emulation)
        text = metrics.text().decode()
        for part in ('machine="a stated one"', 'scale="25.0"', "emulated_steps 7.0", "emulated_overruns 2.0"):
            assert (part in text) == (emulation is told)
