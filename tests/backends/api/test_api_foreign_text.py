"""What a server writes reaches terminal, files and pages without anything that they would act on."""

from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.errors import AnswerError, UserError, visible
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.plugin.models import CloudModel
from tests.support import journals
from tests.support.api_server import Serve, answer, error, refusal
from tests.support.edge import row
from tests.support.servers import response

ESCAPES = "\x1b[2J\x1b]0;title\x07\x00\x08\x7f\x9b31m"
MARKS = "\u202e\u202a\u2066\u2069\u200f\u061c\u200b\u200d\ufeff\u00ad\u2028\u2029\U000e0041\ue000\ud800"
FOREIGN = f"be{ESCAPES}fore{MARKS}after"


def check(text: str) -> None:
    for character in text:
        assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or character == "\n", text


def replies() -> dict[str, bytes]:
    # Half of a character cannot be sent but as JSON has it.
    plain = FOREIGN.encode("utf-8", "replace").decode()
    title = f"<html><title>{plain}</title>"
    return {
        "refused": refusal("400 No", error(FOREIGN)),
        "refused, code": refusal("400 No", error("x", code=FOREIGN)),
        "not JSON": refusal("400 No", plain),
        "a list": refusal("400 No", json.dumps([FOREIGN])),
        "a page": refusal("400 No", title, "text/html"),
        "status 500": refusal("500 No", error(FOREIGN)),
        "a key": refusal("401 No", error(FOREIGN)),
        "not there": refusal("404 No", error(FOREIGN)),
        "a redirect": refusal("302 No", headers="Location: http://x/\x1b[2J\x07\r\n"),
        "in mid-stream": response(
            f"data: {error(FOREIGN)}\n\n".encode(), headers="Content-Type: text/event-stream\r\n"
        ),
        "no stream": refusal("200 OK", json.dumps({"x": FOREIGN})),
        "another type": refusal("200 OK", "x", "text/html\x1b[2J"),
        "a strange end": answer("x", reason="error"),
        "no stream at all": refusal("200 OK", plain, "text/plain"),
    }


@pytest.mark.parametrize("name", replies())
def test_an_error_says_it_written_out(serve: Serve, caplog: pytest.LogCaptureFixture, name: str) -> None:
    server = serve(lambda prompt, number: replies()[name])
    with (
        caplog.at_level(logging.DEBUG),
        APIBasedLLM("m", api_base_url=server.url, api_retries=1) as model,
        pytest.raises(UserError) as caught,
    ):
        model.generate([{"role": "user", "content": "x"}], Sampling())
    check(str(caught.value))
    check(caplog.text)
    if name != "a strange end":
        assert "\\x1b[2J" in str(caught.value) or name in ("refused, code", "another type", "no stream")


def test_files_and_the_screen_of_a_job_have_it_written_out(
    job: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda prompt, number: refusal("400 No", error(FOREIGN)))
    cloud = CloudModel(model="m", backend="api", api_base_url=server.url, max_failures=5)
    query = {"turns": ["x"], "id": f"q{FOREIGN}", "scorer": "none"}
    response = cloud.inference({"query": query, "gold": {}, "index": 0})
    check(response["error"])
    check("".join(what for _, what in response["failures"]))
    check(caplog.text)
    assert "\\x1b[2J" in response["error"]
    check(journals.entries(job)[-1]["error"])
    assert cloud.inference(row("y"))["error"]


def test_what_is_harmless_stays() -> None:
    for text in ("plain", "a b\tc\nd", "é ü 漢字 😀 \u00a0\u3000", "٣ עברית", ""):
        assert visible(text) == text
    assert visible(FOREIGN).startswith("be\\x1b[2J\\x1b]0;title\\x07\\x00\\x08\\x7f\\x9b31mfore\\u202e")
    assert visible("\ud800\r") == "\\ud800\\r"
    assert str(AnswerError("\x1b[2J\u202e")) == "\\x1b[2J\\u202e"
