"""The API back end against a scripted server: what is sent and what an answer is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.specdec import AutoregressiveLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.records.identity import FileDigests
from tests.backends.api.conftest import ask, llm
from tests.support.api_server import Serve, answer, refusal

DIGESTS = FileDigests(Path("unused"))


def test_an_answer_has_usage_and_times_and_comes_in_pieces(serve: Serve) -> None:
    pieces: list[str] = []
    server = serve(lambda prompt, number: answer("The answer is B.", tokens=6))
    found = ask(llm(server), on_chunk=lambda text, tokens: pieces.append(text), max_tokens=9)
    assert found.text == "The answer is B." == "".join(pieces)
    assert (found.prompt_tokens, found.completion_tokens, found.finish_reason) == (5, 6, "stop")
    assert found.trace.tokens == 6
    times = [seconds for seconds, _ in found.trace.chunks]
    assert len(times) == 2
    assert times == sorted(times)
    assert times[0] > 0


def test_the_request_has_what_sampling_asks_for(serve: Serve) -> None:
    server = serve(lambda prompt, number: answer(prompt))
    model = llm(server)
    ask(model, max_tokens=5, temperature=0.5, top_p=0.9, seed=3, stop=("x",))
    ask(model, repetition_penalty=1.1, top_k=5)
    plain, penalised = server.bodies
    sent = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["x"], "stream": True}
    assert {name: plain[name] for name in sent} == sent
    assert plain["stream_options"] == {"include_usage": True}
    assert plain["messages"] == [{"role": "user", "content": "hello"}]
    assert not {"repetition_penalty", "frequency_penalty", "top_k", "logprobs", "top_logprobs"} & plain.keys()
    assert (penalised["repetition_penalty"], penalised["top_k"]) == (1.1, 5)


def test_the_request_can_be_extended_and_cut(serve: Serve) -> None:
    server = serve(lambda prompt, number: answer(prompt))
    extra = {"truncate_prompt_tokens": 100, "max_tokens": None, "max_completion_tokens": 7}
    model = llm(server, api_extra_body=extra)
    ask(model, "Grüße 🙂")
    assert server.bodies[0]["truncate_prompt_tokens"] == 100
    assert "max_tokens" not in server.bodies[0]
    assert server.bodies[0]["messages"][0]["content"] == "Grüße 🙂"
    assert model.identity(DIGESTS)["extra_body"] == extra
    assert llm(server).identity(DIGESTS) == {"backend": "api", "server": server.url, "model": "stub"}


def test_what_a_caller_has_already_seen_is_not_asked_again(serve: Serve) -> None:
    replies = [answer("half of it", reason="error"), answer("good")]
    server = serve(lambda prompt, number: replies[number])
    with pytest.raises(UserError, match="a part of the answer has been streamed"):
        ask(llm(server), on_chunk=lambda text, tokens: None)
    assert len(server.bodies) == 1


def test_a_pause_beyond_the_deadline_is_not_waited_for(serve: Serve) -> None:
    server = serve(lambda prompt, number: refusal("429 No", headers="Retry-After: 3600\r\n"))
    with pytest.raises(UserError, match=r"after 1 attempt .* would begin after the deadline \(api_deadline, 5 s\)"):
        ask(llm(server, api_deadline=5))


def test_a_server_that_is_not_there(serve: Serve) -> None:
    model = APIBasedLLM("stub", api_base_url="http://127.0.0.1:9/v1", api_retries=1)
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/v1 gave no answer after 2 attempts"):
        ask(model)


@pytest.mark.parametrize("end", ["/", "/chat/completions?version=1"])
def test_the_url_may_be_that_of_the_endpoint(serve: Serve, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    server = serve(lambda prompt, number: answer(prompt))
    for url in (f"{server.url}{end}", "STUB_URL"):
        monkeypatch.setenv("STUB_URL", f"{server.url}{end}")
        model = llm(server, api_base_url=url)
        assert ask(model).text == "hello"
        assert server.heads[-1].startswith(f"POST /v1/chat/completions{end[17:]} ")
        assert model.identity(DIGESTS)["server"] == server.url


@pytest.mark.parametrize(
    ("url", "key", "at_fault"),
    [
        ("", "k", "api_base_url"),
        ("ftp://x/v1", "k", "api_base_url"),
        ("http://x:99999/v1", "k", "api_base_url"),
        ("http://x/v1", "sk-\n-two-lines", "api_key_env"),
        ("http://x/v1", " ", "api_key_env"),
    ],
)
def test_urls_and_keys_that_cannot_be(monkeypatch: pytest.MonkeyPatch, url: str, key: str, at_fault: str) -> None:
    monkeypatch.setenv("A_URL", url)
    monkeypatch.setenv("A_KEY", key)
    with pytest.raises(UserError) as caught:
        APIBasedLLM("m", api_base_url="A_URL", api_key_env="A_KEY").load()
    assert caught.value.key == at_fault
    assert key not in str(caught.value) or len(key) == 1


def test_lossless_is_measured_against_the_same_model_at_home(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    digests = FileDigests(tmp_path / "digests.json")
    home = {"model": str(tmp_path / "model"), "dtype": "float32", "threads": 1}
    model = APIBasedLLM("m", api_base_url="http://localhost:1/v1", api_extra_body={"specdec": True}, api_baseline=home)
    assert model.baseline_identity(digests) == AutoregressiveLLM(**home).baseline_identity(digests)  # type: ignore[arg-type]
    assert APIBasedLLM("m").baseline_identity(digests) is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"api_endpoints": []}, "must be a list"),
        ({"api_endpoints": ["http://x/v1"]}, "a list of mappings with base_url"),
        ({"api_endpoints": [{"base_url": "X", "wieght": 2}]}, "Did you mean 'weight'"),
        ({"api_endpoints": [{"base_url": 3}]}, "api_endpoints: base_url must be a text"),
        ({"api_concurrency": 0}, "whole number from 1"),
        ({"api_token_rate": float("inf")}, "number from"),
        ({"api_timeout": 0}, "number from"),
        ({"api_retries": -1}, "whole number from 0"),
        ({"api_provider": "grok"}, "openai"),
        ({"api_baseline": {"model": "x"}}, "api_extra_body: {specdec: true}"),
        ({"api_baseline": {"modle": "x"}, "api_extra_body": {"specdec": True}}, "Did you mean 'model'"),
        ({"api_baseline": {"dtype": "float32"}, "api_extra_body": {"specdec": True}}, "under model"),
    ],
)
def test_wrong_options_name_their_key_and_say_what_is_right(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError) as caught:
        APIBasedLLM("m", **options)
    assert part in str(caught.value)
    assert caught.value.key == next(iter(options))
