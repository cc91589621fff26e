"""What a server's chat template is told by its settings and by requests, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from tests.support.models import CHAT_TEMPLATE, build_model

from .conftest import serving

TEMPLATE = CHAT_TEMPLATE + "{{ mood }}{% if strftime_now('%Y') == '2024' %} in 2024{% endif %}"


def test_requests_say_what_the_template_is_told(tmp_path: Path) -> None:
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


def test_what_the_template_refuses_is_a_wrong_request(tmp_path: Path) -> None:
    refusing = "{% if mood %}{{ raise_exception('no moods, ' + strftime_now('%Y')[:2]) }}{% endif %}" + CHAT_TEMPLATE
    model = build_model(tmp_path / "m", chat_template=refusing)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with serving(tmp_path, "--model", str(model)) as server:
        status, _, answer = server.chat({**body, "chat_template_kwargs": {"mood": "calm"}})
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "no moods, 20" in answer["error"]["message"]
        assert server.chat(body)[0] == 200
        assert "the chat template uses today's date" in server.output
