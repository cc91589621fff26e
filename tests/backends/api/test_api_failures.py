"""What is reported when a server does not answer, what follows from it, and what is never shown: the key."""

from __future__ import annotations

import json
import logging
import unicodedata
import urllib.parse
from pathlib import Path

import pytest

from ianvs_specdec.backends.api.failures import MAX_BODY, message_of
from ianvs_specdec.common.errors import AnswerError, UserError, visible
from ianvs_specdec.plugin.models import CloudModel
from tests.backends.api.conftest import KEY, ask, llm
from tests.support import journals
from tests.support.api_server import Serve, answer, error, refusal
from tests.support.servers import response

ESCAPES = "\x1b[2J\x1b]0;title\x07\x00\x08\x7f\x9b31m"
MARKS = "\u202e\u202a\u2066\u2069\u200f\u061c\u200b\u200d\ufeff\u00ad\u2028\u2029\U000e0041\ue000\ud800"
FOREIGN = f"be{ESCAPES}fore{MARKS}after"


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        (
            refusal("401 Unauthorized", error("bad key")),
            ["not accept the key in the environment variable STUB_KEY (api_key_env): status 401: bad key"],
        ),
        (refusal("403 Forbidden", error("not for you")), ["status 403: not for you", "STUB_KEY"]),
        (
            refusal("404 Not Found", "<html><title>Not\nhere</title></html>", "text/html"),
            ["status 404: an HTML page 'Not here'", "mostly ends in /v1", "api_base_url", "name stub"],
        ),
        (refusal("402 Payment Required"), ["status 402: Payment Required"]),
        (refusal("429 Too Many", error("none left", code="insufficient_quota")), ["status 429: none left"]),
        (refusal("308 Moved", headers="Location: https://other/v1\r\n"), ["it redirects to https://other/v1"]),
        (refusal("200 OK", "<html><title>Login</title>", "text/html"), ["an HTML page 'Login'", "mostly ends in /v1"]),
        (refusal("200 OK", "just\na text", "text/plain"), ["it answers, not with a stream of events: just a text"]),
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
    ("body", "part", "kind"),
    [
        (error("maximum is 10", code="context_length_exceeded"), "a shorter prompt", "context window"),
        (error("exceeds the context window"), "a shorter prompt", "context window"),
        (json.dumps({"detail": "top_k is unknown"}), "status 400: top_k is unknown", "status 400"),
    ],
)
def test_a_request_that_is_refused_is_one_that_others_may_survive(
    serve: Serve, body: str, part: str, kind: str
) -> None:
    server = serve(lambda prompt, number: refusal("400 Bad Request", body) if prompt == "bad" else answer("good"))
    model = llm(server)
    with pytest.raises(AnswerError, match="refused the request") as caught:
        ask(model, "bad")
    assert part in str(caught.value)
    assert [found for _, found in caught.value.failures] == [kind]
    assert ask(model).text == "good"
    assert len(server.bodies) == 2


def test_failures_are_told_with_the_answer_and_with_the_lack_of_one(serve: Serve) -> None:
    replies = [
        refusal("500 Internal Server Error", error("busy")),
        refusal("408 Request Timeout", error("busy")),
        refusal("429 Too Many Requests", error("slow down")),
        None,
        answer("broken", reason="error"),
        b"nonsense\r\n\r\n",
        answer("good"),
    ]
    server = serve(lambda prompt, number: replies[number])
    found = ask(llm(server, api_retries=6))
    kinds = ["status 500", "status 408", "rate limit", "connection", "broken stream", "broken stream"]
    assert [kind for _, kind in found.trace.failures] == kinds
    assert found.text == "good"
    assert found.trace.bytes_down > sum(len(reply) for reply in replies if reply) - 200
    assert found.trace.bytes_up > 7 * len(json.dumps(server.bodies[0]))
    replies[:] = [replies[0]] * 3
    server.bodies.clear()
    with pytest.raises(AnswerError, match=r"no answer after 3 attempts in .* s: status 500: busy") as caught:
        ask(llm(server, api_retries=2))
    assert [kind for _, kind in caught.value.failures] == ["status 500"] * 3
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


@pytest.mark.timeout(60)  # 0.1 s, or minutes where the work grows with the square of the page
@pytest.mark.parametrize("piece", ["<title", "<title><TITLE ", "<titl"])
def test_no_page_takes_long_to_read(piece: str) -> None:
    """Looking for a title's end after each of its beginnings takes minutes for a page of this length."""
    page = (piece * MAX_BODY)[: 4 * MAX_BODY].encode()
    assert message_of(page, "text/html")[0].startswith("an HTML page")


def test_a_server_that_has_answered_is_asked_again_after_what_is_no_stream(serve: Serve) -> None:
    server = serve(lambda prompt, number: refusal("200 OK", "a proxy's page") if number == 1 else answer("good"))
    model = llm(server, api_retries=0)
    assert ask(model).text == "good"
    with pytest.raises(AnswerError, match="not with a stream of events"):
        ask(model)
    assert ask(model).text == "good"


def check_visible(text: str) -> None:
    for character in text:
        assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or character == "\n", text


FOREIGN_REPLIES = {
    "refused": refusal("400 No", error(FOREIGN)),
    # Half of a character cannot be sent but as JSON has it.
    "a page": refusal("400 No", f"<title>{FOREIGN.encode('utf-8', 'replace').decode()}</title>", "text/html"),
    "a redirect": refusal("302 No", headers="Location: http://x/\x1b[2J\x07\r\n"),
    "in mid-stream": response(f"data: {error(FOREIGN)}\n\n".encode(), headers="Content-Type: text/event-stream\r\n"),
}


@pytest.mark.parametrize("name", FOREIGN_REPLIES)
def test_control_characters_of_a_server_are_escaped(serve: Serve, caplog: pytest.LogCaptureFixture, name: str) -> None:
    server = serve(lambda prompt, number: FOREIGN_REPLIES[name])
    with caplog.at_level(logging.DEBUG), pytest.raises(UserError) as caught:
        ask(llm(server, api_retries=1))
    check_visible(str(caught.value))
    check_visible(caplog.text)
    assert "\\x1b[2J" in str(caught.value)


def test_files_and_the_screen_of_a_job_have_them_escaped(
    job: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda prompt, number: refusal("400 No", error(FOREIGN)))
    cloud = CloudModel(model="m", backend="api", api_base_url=server.url, max_failures=5)
    query = {"turns": ["x"], "id": f"q{FOREIGN}", "scorer": "none"}
    response = cloud.inference({"query": query, "gold": {}, "index": 0})
    check_visible(response["error"])
    check_visible(caplog.text)
    assert "\\x1b[2J" in response["error"]
    check_visible(journals.entries(job)[-1]["error"])


def test_what_is_harmless_stays() -> None:
    for text in ("plain", "a b\tc\nd", "é ü 漢字 😀 \u00a0\u3000", "٣ עברית", ""):
        assert visible(text) == text
    assert visible(FOREIGN).startswith("be\\x1b[2J\\x1b]0;title\\x07\\x00\\x08\\x7f\\x9b31mfore\\u202e")
