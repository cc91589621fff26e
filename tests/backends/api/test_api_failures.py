"""What is said when a server does not answer, what follows from it, and what is never said: the key."""

from __future__ import annotations

import json
import logging
import urllib.parse
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.backends.api.failures import LONGEST_BODY, message_of
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling
from tests.backends.api.conftest import KEY
from tests.support.api_server import ScriptedAPI, Serve, answer, error, refusal


def llm(server: ScriptedAPI, **options: Any) -> APIBasedLLM:
    return APIBasedLLM("stub", **{"api_base_url": server.url, "api_key_env": "STUB_KEY", **options})


def ask(model: APIBasedLLM, prompt: str = "hello") -> Any:
    return model.generate([{"role": "user", "content": prompt}], Sampling())


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        (
            refusal("401 Unauthorized", error("bad key")),
            ["not accept the key in the environment variable STUB_KEY (api_key_env): status 401: bad key"],
        ),
        (refusal("403 Forbidden", error("not for you")), ["status 403: not for you", "STUB_KEY"]),
        (refusal("404 Not Found", error("no model stub")), ["status 404: no model stub", "api_base_url", "name stub"]),
        (
            refusal("404 Not Found", "<html><title>Not\nhere</title></html>", "text/html"),
            ["status 404: an HTML page 'Not here'", "mostly ends in /v1"],
        ),
        (refusal("402 Payment Required"), ["status 402: Payment Required"]),
        (refusal("429 Too Many", error("none left", code="insufficient_quota")), ["status 429: none left"]),
        (refusal("308 Moved", headers="Location: https://other/v1\r\n"), ["it redirects to https://other/v1"]),
        (refusal("200 OK", "<html><title>Login</title>", "text/html"), ["text/html", "'Login'", "mostly ends in /v1"]),
        (
            refusal("200 OK", "<html><title>Hello</title>", "text/plain"),
            ["events: an HTML page 'Hello' (is api_base_url"],
        ),
        (refusal("200 OK", "just\na text", "text/plain"), ["it answers, not with a stream of events: just a text"]),
        (refusal("200 OK", error("no streams here")), ["not with a stream of events: no streams here"]),
        (refusal("499 Odd", "no reason", "text/plain"), ["status 499: no reason"]),
        (refusal("418 Teapot", "[" * 60_000), ["status 418: [[["]),
    ],
)
def test_a_server_that_would_answer_nothing_is_asked_once(serve: Serve, reply: bytes, parts: list[str]) -> None:
    server = serve(lambda prompt, number: reply)
    with pytest.raises(UserError, match="cannot be used" if b" 200 " in reply else "refused the request") as caught:
        ask(llm(server))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert len(server.bodies) == 1
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (error("maximum context length is 10", code="context_length_exceeded"), "a shorter prompt"),
        (error("exceeds the context window"), "a shorter prompt"),
        (json.dumps({"detail": "top_k is unknown"}), "status 400: top_k is unknown"),
        (json.dumps({"error": "plain"}), "status 400: plain"),
    ],
)
def test_a_request_that_is_refused_is_one_that_others_may_survive(serve: Serve, body: str, part: str) -> None:
    server = serve(lambda prompt, number: refusal("400 Bad Request", body) if prompt == "bad" else answer("good"))
    model = llm(server)
    with pytest.raises(AnswerError, match="refused the request") as caught:
        ask(model, "bad")
    assert part in str(caught.value)
    kind = "context window" if part == "a shorter prompt" else "status 400"
    assert [told for _, told in caught.value.failures] == [kind]
    assert ask(model).text == "good"
    assert len(server.bodies) == 2


def test_failures_are_told_with_the_answer_and_with_the_lack_of_one(serve: Serve) -> None:
    replies = [
        refusal("503 Service Unavailable", error("busy")),
        refusal("429 Too Many Requests", error("slow down")),
        None,
        answer("broken", reason="error"),
        b"nonsense\r\n\r\n",
        answer("good"),
    ]
    server = serve(lambda prompt, number: replies[number])
    found = ask(llm(server))
    kinds = ["status 503", "rate limit", "connection", "broken stream", "broken stream"]
    assert [kind for _, kind in found.trace.failures] == kinds
    assert found.text == "good"
    assert found.trace.bytes_down > sum(len(reply) for reply in replies if reply) - 200
    assert found.trace.bytes_up > 6 * len(json.dumps(server.bodies[0]))
    replies[:] = [replies[0]] * 3
    server.bodies.clear()
    with pytest.raises(AnswerError, match=r"no answer after 3 attempts in .* s: status 503: busy") as caught:
        ask(llm(server, api_retries=2))
    assert [kind for _, kind in caught.value.failures] == ["status 503"] * 3
    assert "(no further attempt: api_retries permits 2 after the first)" in str(caught.value)


def echoes(head: str) -> list[bytes]:
    """Replies of servers that repeat what they were sent, plainly or escaped, wherever a reply has text."""
    authorization = next(line for line in head.splitlines() if line.lower().startswith("authorization"))
    replies = [refusal("500 No", f"{'x' * cut}{authorization}") for cut in range(340, 420, 3)]
    for text in (authorization, urllib.parse.quote(authorization, safe=""), json.dumps(json.dumps(authorization))):
        replies += [refusal(status, text, "text/html") for status in ("401 No", "400 No")]
        replies += [refusal("401 No", error(text)), refusal("302 No", headers=f"Location: http://x/{text}\r\n")]
        replies += [refusal("200 OK", f"<title>{text}</title>", "text/html"), answer(text)]
    return replies


def test_a_server_that_says_the_key_back_is_not_repeated(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(lambda prompt, number: echoes(server.heads[-1])[int(prompt)])
    said = []
    with caplog.at_level(logging.DEBUG):
        for index in range(len(echoes(f"Authorization: Bearer {KEY}"))):
            try:
                said.append(ask(llm(server, api_retries=0), str(index)).text)
            except UserError as refused:
                said.append(str(refused))
    assert f"Bearer {KEY}" in server.heads[0]
    assert sum("***" in text for text in said) > 18, "something was taken out of each that was not cut before the key"
    for text in (*said, caplog.text):
        for part in ("0123456789", KEY[3:9], "%61%22", "sk-a"):
            assert part not in text


def test_a_key_that_is_missing_or_a_password_that_is_wrong_is_told_as_such(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda prompt, number: refusal("401 No", error("no")))
    with pytest.raises(UserError, match=r"it wants a key: there is none in the environment variable NO_KEY \(api_key"):
        ask(llm(server, api_key_env="NO_KEY"))
    monkeypatch.setenv("STUB_URL", server.url.replace("://", "://me:pa55-word@"))
    with pytest.raises(UserError, match=r"not accept the user name and the password of the URL \(api_base_url\)"):
        ask(llm(server, api_base_url="STUB_URL"))


def test_a_password_of_the_url_is_a_secret_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda prompt, number: refusal("403 No", error(server.heads[-1].split("Authorization: ")[1][:60])))
    url = server.url.replace("://", "://me:pa55-word-long@").replace("/v1", "/v1?token=query-secret-1")
    server.reply = lambda prompt, number: refusal("403 No", error(server.heads[-1]))
    monkeypatch.setenv("STUB_URL", url)
    with pytest.raises(UserError) as caught:
        ask(llm(server, api_base_url="STUB_URL"))
    assert "POST /v1/chat/completions?token=query-secret-1 HTTP/1.1" in server.heads[-1]
    assert "Authorization: Basic bWU6cGE1NS13b3JkLWxvbmc=" in server.heads[-1]
    for secret in ("bWU6", "pa55", "query-secret"):
        assert secret not in str(caught.value)
    assert "token=***" in str(caught.value)
    assert server.url in str(caught.value)


@pytest.mark.timeout(60)  # 0.1 s, or minutes where the work grows with the square of the page
@pytest.mark.parametrize("piece", ["<title", "<title>", "<title><TITLE ", "</title", "<", "<title>x</titl"])
def test_no_page_takes_long_to_read(piece: str) -> None:
    """Looking for a title's end after each of its beginnings takes minutes for a page of this length."""
    page = (piece * LONGEST_BODY)[: 4 * LONGEST_BODY].encode()
    assert message_of(page, "text/html")[0].startswith("an HTML page")


def test_a_server_that_has_answered_is_asked_again_after_what_is_no_stream(serve: Serve) -> None:
    server = serve(lambda prompt, number: refusal("200 OK", "a proxy's page") if number == 1 else answer("good"))
    model = llm(server, api_retries=0)
    assert ask(model).text == "good"
    with pytest.raises(AnswerError, match="not with a stream of events"):
        ask(model)
    assert ask(model).text == "good"
