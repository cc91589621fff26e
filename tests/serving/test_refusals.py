"""Invalid requests get the protocol's error object, and the server keeps running."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.serving.protocol import RequestError, event
from ianvs_specdec.serving.requests import parse_chat

from .conftest import Server, serving

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-very-secret-0123456789"


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 129}, "n"),
        ({"n": 2, "specdec": True}, "specdec"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"stop_token_ids": [3]}, "stop_token_ids"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"min_p": 0.1}, "min_p"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 1e-300}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"max_completion_tokens": -(10**400)}, "max_completion_tokens"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"prediction": {"type": "other", "content": "x"}}, "prediction.type"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        (message(role=["user"]), "messages[0].role"),
        (message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0]"),
        (message(tool_calls=[{"id": "1"}]), "messages[0].tool_calls"),
        ({"min_tokens": 9, "max_completion_tokens": 8}, "min_tokens"),
        ({"model": None}, "model"),
    ],
)
def test_invalid_parameters(server: Server, change: dict[str, Any], param: str) -> None:
    status, _, body = server.chat({"model": "tiny", "messages": HELLO, **change})
    assert status == 400
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", param)
    assert param.rpartition(".")[2] in body["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "temperature": NaN}',
        b'{"model": "tiny", "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_invalid_bodies(server: Server, body: bytes) -> None:
    status, _, answer = server.chat(body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert len(json.dumps(answer)) < 1000


def test_openai_client_raises_its_errors(server: Server) -> None:
    import openai

    client = server.client()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-x", messages=HELLO)
    assert missing.value.code == "model_not_found"
    assert "'tiny'" in str(missing.value)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, n=129)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-x")
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_unknown_paths_and_methods(server: Server) -> None:
    for method, path, expected in (("GET", "/v2", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)):
        status, _, body = server.request(method, path)
        assert status == expected
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_content_type_must_be_json(server: Server) -> None:
    body = {"model": "tiny", "messages": HELLO}
    assert server.chat(body, Content_Type="text/plain")[0] == 415
    assert server.chat(body, Content_Type="application/json; charset=utf-8")[0] == 200


def test_without_key_only_local_hosts(server: Server) -> None:
    body, before = {"model": "tiny", "messages": HELLO}, server.metrics()["requests_total.rejected"]
    for host, origin in (("evil.example", "http://evil.example"), ("localhost", "http://evil.example")):
        status, _, answer = server.chat(body, Host=host, Origin=origin)
        assert (status, answer["error"]["code"]) == (403, "foreign_host")
    assert server.metrics()["requests_total.rejected"] == before + 2
    assert [server.request("GET", path, Host="evil.example")[0] for path in ("/metrics", "/health", "/v2")] == [403] * 3
    assert server.chat(body, Host="LocalHost:1")[0] == 200
    with socket.create_connection(server.address.split(":")) as old:
        old.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in old.recv(100)


def test_broken_clients(server: Server) -> None:
    host, _, port = server.address.partition(":")
    for words in (
        b"\x16\x03\x01 hello\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99\r\n\r\n{",
    ):
        before = server.metrics()["requests_total.disconnected"]
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(words)
        if words.startswith(b"POST"):
            server.wait_for(**{"requests_total.disconnected": before + 1})
    assert server.chat({"model": "tiny", "messages": HELLO})[0] == 200


def test_key_and_body_limit(tiny: Path, tmp_path: Path) -> None:
    import openai

    arguments = ["--model", str(tiny), "--api-key-env", "SERVED_KEY", "--max-body", "2000", "--name", "org/tiny"]
    with serving(tmp_path, *arguments, SERVED_KEY=KEY) as server:
        seen = ""
        for given in ("", "Bearer wrong", KEY, f"Bearer {KEY}x", "Bearer \u00e9", f"bearer {KEY}"):
            status, headers, body = server.chat({"model": "org/tiny", "messages": HELLO}, Authorization=given)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key"), given
            seen += json.dumps([headers, body])
        assert server.request("GET", "/v1/models")[0] == 401
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        client = server.client(api_key=KEY)
        assert (
            client.chat.completions.create(model="org/tiny", messages=HELLO, max_tokens=2).usage.completion_tokens == 2
        )
        # Health and figures are for machines that have no key.
        assert server.request("GET", "/health")[0] == 200
        long = {"model": "org/tiny", "messages": [{"role": "user", "content": "x" * 3000}]}
        status, _, body = server.chat(long, Authorization=f"Bearer {KEY}")
        assert (status, body["error"]["code"]) == (413, "body_too_long")
        status, _, text = chunked(server, [b"x" * 1500] * 2)
        assert (status, json.loads(text)["error"]["code"]) == (413, "body_too_long")
        assert client.models.list().data[0].id == client.models.retrieve("org/tiny").id == "org/tiny"
        seen += json.dumps([body, *map(str, server.metrics())])
        assert server.metrics()["requests_total.rejected"] == 8
        assert server.stop() == 0
        assert KEY not in server.output + seen
        assert "hello" not in server.output


def chunked(server: Server, parts: list[bytes]) -> tuple[int, dict[str, str], bytes]:
    """A body whose length is not announced."""
    connection = server.connect()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/chat/completions", iter(parts), headers, encode_chunked=True)
    response = connection.getresponse()
    found = response.status, dict(response.getheaders()), response.read()
    connection.close()
    return found


def test_settings_are_defaults() -> None:
    defaults = Sampling(max_tokens=7, temperature=0.5, top_k=3, stop=("x",))
    body = {"model": "m", "messages": HELLO}
    assert parse_chat(json.dumps(body).encode(), ("m",), defaults).sampling == defaults
    nothing = dict.fromkeys(["max_tokens", "temperature", "stop", "tools", "seed", "stream"])
    assert parse_chat(json.dumps(body | nothing).encode(), ("m",), defaults).sampling == defaults
    assert parse_chat(json.dumps(body | {"max_tokens": 9}).encode(), ("m",), defaults).sampling.max_tokens == 9


def test_errors_shorten_long_names() -> None:
    with pytest.raises(RequestError) as refusal:
        parse_chat(json.dumps({"model": "m" * 9999, "messages": HELLO}).encode(), ("tiny",), Sampling())
    assert len(str(refusal.value)) < 500
    with pytest.raises(RequestError) as refusal:
        parse_chat(json.dumps({"m" * 9999: 1}).encode(), ("tiny",), Sampling())
    assert len(str(refusal.value)) < 500


def test_event_has_no_unicode_line_ends() -> None:
    said = {"content": "a\u2028b\u2029c\x85d\ne\r\u00e9\U0001f600"}
    text = event(said).decode()
    assert text.splitlines() == [text.rstrip("\n"), ""]
    assert json.loads(text.removeprefix("data: ")) == said
    assert "\u00e9\U0001f600" in text
