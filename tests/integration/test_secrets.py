"""The API key is in no file and no output, even if a server echoes it."""

from __future__ import annotations

import html
import json
import urllib.parse

import pytest

from tests.support import journals
from tests.support.api_server import ScriptedAPI, answer, error, refusal
from tests.support.harness import Workplace, questions

KEY = 'sk-"q/r+s\\t=0123456789-for-nobody'


def told(authorization: str) -> list[str]:
    """Encodings of the header."""
    return [
        authorization,
        urllib.parse.quote(authorization, safe=""),
        urllib.parse.quote(urllib.parse.quote(authorization)),
        json.dumps(authorization),
        html.escape(authorization),
        "".join(f"\\u{ord(character):04x}" for character in authorization),
    ]


def misbehaved(head: str, number: int) -> bytes:
    """All encodings in answers and in temporary failures, then in a permanent one."""
    authorization = next(line for line in head.splitlines() if line.startswith("Authorization"))
    texts = told(authorization)
    replies = [reply for text in texts for reply in (answer(f"B {text}"), refusal("500 No", error(text)), answer("B"))]
    return replies[number] if number < len(replies) else refusal("401 No", error(" ".join(texts)))


def decoded(data: bytes) -> str:
    """The text without encodings."""
    text = data.decode("utf-8", "replace")
    for _ in range(3):
        text = html.unescape(urllib.parse.unquote(text)).replace("\\\\", "\\").replace('\\"', '"').replace("\\/", "/")
    return text


@pytest.mark.slow
def test_the_api_key_is_in_no_file(workplace: Workplace) -> None:
    server = ScriptedAPI(lambda prompt, number: misbehaved(server.heads[-1], number))
    workplace.on_api(server.url)
    for side in ("edge", "cloud"):
        workplace.settings(side, api_key_env="SECRET_KEY", api_retry_budget=1.0)
    workplace.algorithms("EdgeOnly", "CloudOnly")
    workplace.data(questions(11))
    outcome = workplace.ianvs("--debug", SECRET_KEY=KEY)
    server.close()
    assert outcome.code == 1
    assert f"the API at {server.url} refused the request: it does not accept the key in the" in outcome.stderr
    assert all(f"Bearer {KEY}" in head for head in server.heads), "the key must have been sent"
    written = {str(path): path.read_bytes() for path in workplace.root.rglob("*") if path.is_file()}
    journal = journals.text(workplace.workspace)
    assert journal.count("***") == 6, "the answers that held it are there, without it"
    for place, data in {**written, "the output": outcome.output.encode()}.items():
        for part in (KEY, KEY[3:12], "0123456789-for", "\\u0073\\u006b", "for-nobody"):
            assert part not in data.decode("utf-8", "replace"), place
            assert part not in decoded(data), place
