"""Redaction of keys in streamed answers, and of secrets in URLs."""

from __future__ import annotations

import json
import logging
import urllib.parse
from pathlib import Path

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import CloudModel
from tests.backends.api.conftest import KEY, ask, choice, llm, stream_of, usage
from tests.support.api_server import Serve, answer, error, refusal
from tests.support.edge import row

DISGUISES = (
    KEY,
    urllib.parse.quote(KEY, safe=""),
    json.dumps(KEY)[1:-1],
    "".join(f"\\u{ord(character):04x}" for character in KEY),
    KEY.replace("+", "&plus;").replace('"', "&quot;"),
)


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_streamed_pieces_are_redacted(serve: Serve, disguise: str, size: int) -> None:
    said = f"The key is {disguise}, so {disguise[:9]} and sk-a then {disguise}"
    chunks = [choice(said[start : start + size]) for start in range(0, len(said), size)]
    server = serve(lambda prompt, number: stream_of(*chunks, choice(None, "stop"), usage(9)))
    pieces: list[str] = []
    found = ask(llm(server), "x", lambda piece, tokens: pieces.append(piece))
    assert found.text == f"The key is ***, so {disguise[:9]} and sk-a then ***"
    assert "".join(pieces) == found.text
    if size == 1:
        assert len(pieces) > 20, "what is no secret does not wait for the end"


@pytest.mark.parametrize(
    ("delta", "heard", "key_env"),
    [
        ({"content": KEY[:8]}, [], "STUB_KEY"),
        ({"reasoning_content": KEY[:8]}, [""], "STUB_KEY"),
        ({"reasoning_content": KEY[:8]}, [""], None),
    ],
)
def test_a_broken_answer_without_streamed_text_is_retried(
    serve: Serve, delta: dict[str, str], heard: list[str], key_env: str | None
) -> None:
    broken = {"choices": [{"index": 0, "delta": delta}]}
    replies = [stream_of(broken, choice(None, "error"), usage(9)), answer("good")]
    server = serve(lambda prompt, number: replies[number])
    pieces: list[str] = []
    found = ask(llm(server, api_key_env=key_env), "x", lambda piece, tokens: pieces.append(piece))
    assert ("".join(pieces), pieces[: len(heard)], found.text) == ("good", heard, "good")


@pytest.mark.parametrize(
    ("before", "after", "secrets"),
    [
        ("", "/hidden-part-1/v1", ["hidden-part-1"]),
        ("", "/v1/sk-hidden1/openai#sk-hidden4", ["sk-hidden1", "sk-hidden4"]),
        ("hiddenname@", "/v1", ["hiddenname"]),
        ("me:hidden-1@", "/v1?code=hidden-2#hidden-3", ["hidden-1", "hidden-2", "hidden-3", "bWU6"]),
    ],
)
def test_secrets_in_a_url_of_the_environment_are_redacted(
    job: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    before: str,
    after: str,
    secrets: list[str],
) -> None:
    def reply(prompt: str, number: int) -> bytes:
        echoed = f"{prompt} {' '.join(secrets[:3])} {server.heads[-1]}"
        return answer(echoed) if prompt == "fine" else refusal("400 No", error(echoed))

    server = serve(reply)
    monkeypatch.setenv("HIDDEN_URL", server.url.replace("//", f"//{before}").replace("/v1", after))
    options = {"api_base_url": "HIDDEN_URL", "api_key_env": "STUB_KEY"}
    cloud = CloudModel(model="m", backend="api", max_failures=9, max_tokens=512, **options)
    with caplog.at_level(logging.DEBUG):
        answers = [cloud.inference(row("fine")), cloud.inference(row("wrong"))]
        said = [json.dumps(answers), caplog.text]
        for status in ("401 No", "404 No", "500 No"):
            server.reply = lambda prompt, number, status=status: refusal(status, error(server.heads[-1]))  # type: ignore[misc]
            with APIBasedLLM("m", **options, api_retries=0) as model, pytest.raises(UserError) as caught:
                ask(model, "x")
            said.append(str(caught.value))
    cloud.cleanup()
    assert ("Authorization: Basic " in server.heads[0]) == bool(before)
    written = [path.read_text(errors="replace") for path in job.rglob("*") if path.is_file()]
    assert any("CREATE TABLE configurations" in text for text in written)
    for text in (*written, *said):
        for secret in secrets:
            assert secret not in text, text


def test_redacted_paths_distinguish_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def server(url: str) -> str:
        monkeypatch.setenv("HIDDEN_URL", url)
        return APIBasedLLM("m", api_base_url="HIDDEN_URL").endpoints[0].server()

    one, other = server("https://host/team-a/v1"), server("https://host/team-b/v1")
    assert one != other
    assert "team" not in one + other
    assert server("https://api.openai.com/v1/") == "https://api.openai.com/v1"
    assert APIBasedLLM("m", api_base_url="https://host/team-a/v1").endpoints[0].server() == "https://host/team-a/v1"
