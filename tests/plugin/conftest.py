"""A tiny model with random weights, a scripted OpenAI-compatible server, and a job folder as Ianvs announces it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.answers.journal import Journal

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_model(folder: Path, *, seed: int = 0, chat_template: str | None = CHAT_TEMPLATE, window: int = 512) -> Path:
    """A byte-level tokenizer and a Llama of two layers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    raw = Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = chat_template
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=window,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge model tells Sedna by environment variables what it is; they end with the test."""
    for name in ("BACKEND_TYPE", "model_path"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job folder, announced as Ianvs does. ``new_run`` in the tests stands for starting Ianvs again."""
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "workspace" / "job" / "algorithm"))
    monkeypatch.setenv("IANVS_RUN_ID", "run-1")
    monkeypatch.delenv("IANVS_FRESH", raising=False)
    return tmp_path / "workspace" / "job"


@pytest.fixture
def new_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands for starting Ianvs again: a new run id, and no journal in memory."""
    number = 1

    def start(*, fresh: bool = False) -> None:
        nonlocal number
        number += 1
        monkeypatch.setenv("IANVS_RUN_ID", f"run-{number}")
        monkeypatch.setenv("IANVS_FRESH", "1" if fresh else "0")
        Journal._open.clear()

    return start


class StubServer(ThreadingHTTPServer):
    """Answers chat completions by a script: one action per request, the last one for all further requests.

    Actions: "ok"; an HTTP status; "hang"; "die" (drops the connection in mid-stream); "truncate" (ends the stream
    politely, but without a finish reason); "no usage"; "slow" (a piece every 50 ms); "continuous" (usage with every
    chunk).
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[str | int] = ["ok"]
        self.requests: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.pieces = ["The ", "answer ", "is ", "B."]
        self.tokens = 6
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gives up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: StubServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        stub = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        index = len(stub.requests)
        stub.requests.append({"body": body, "key": self.headers.get("Authorization", ""), "time": time.monotonic()})
        action = stub.script[min(index, len(stub.script) - 1)]
        if isinstance(action, int):
            self._reply(
                action, stub.headers, json.dumps({"error": {"message": f"bad: {self.headers.get('Authorization')}"}})
            )
        elif action == "hang":
            stub.released.wait(120)
        else:
            self._stream(str(action))

    def _reply(self, status: int, headers: dict[str, str], text: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def _event(self, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _stream(self, action: str) -> None:
        stub = self.server
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

        def choice(content: str | None, reason: str | None) -> dict[str, Any]:
            return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]}

        for number, piece in enumerate(stub.pieces):
            if action == "die" and number == 2:
                self.connection.close()
                return
            if action == "slow":
                time.sleep(0.05)
            so_far = {"prompt_tokens": 11, "completion_tokens": number + 1, "total_tokens": number + 12}
            self._event(**choice(piece, None), **({"usage": so_far} if action == "continuous" else {}))
        if action == "truncate":
            self.wfile.write(b"data: [DONE]\n\n")
            return
        self._event(**choice(None, "stop"))
        if action != "no usage":
            total = {"prompt_tokens": 11, "completion_tokens": stub.tokens, "total_tokens": 11 + stub.tokens}
            self._event(usage=total)
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setattr("ianvs_specdec.llm.api.session.FIRST_DELAY", 0.01)
    server = StubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
