"""``specdec serve`` in a process; a model whose answer depends on the prompt, and one that never ends."""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm
from tests.support.models import build_model

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")

CYCLE = "é€😀a\n"
"""What the endless model says again and again: characters of one to four bytes, no byte twice."""
LONGEST = 300.0
"""Seconds after which a test gives up; no test depends on how long anything takes."""


def build_endless(folder: Path) -> Path:
    """A model in which every token has one successor: the bytes of CYCLE in turn, for ever."""
    from transformers import AutoTokenizer

    build_model(folder)
    ids = AutoTokenizer.from_pretrained(folder)(CYCLE, add_special_tokens=False)["input_ids"]
    assert len(set(ids)) == len(ids)
    return write_successors(folder, dict.fromkeys(range(258), ids[0]) | pairs([*ids, ids[0]]))


def pairs(ids: list[int]) -> dict[int, int]:
    return dict(itertools.pairwise(ids))


def write_successors(folder: Path, successor: dict[int, int], size: int = 258) -> Path:
    """Replace the model in ``folder`` by one in which every token has one successor."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size,
        hidden_size=260,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=100_000,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, 260))
        model.lm_head.weight.zero_()
        for token, follower in successor.items():
            model.lm_head.weight[follower, token] = 1.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_endless(tmp_path_factory.mktemp("served") / "endless")


class Process:
    """A running ``specdec`` that listens. What it prints goes to files. ``cold``: it is started as a user starts it."""

    def __init__(
        self, folder: Path, arguments: tuple[str, ...], environment: dict[str, str] | None = None, cold: bool = False
    ) -> None:
        self._outputs = [folder / f"{time.monotonic_ns()}-{kind}.txt" for kind in ("out", "err")]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        self.process: subprocess.Popen[bytes] | warm.Fork
        if warm.POSSIBLE and not cold:
            self.process = warm.start("specdec", arguments, folder, environment, self._outputs, models=True)
        else:
            command = [sys.executable, "-m", "ianvs_specdec.commands.cli", *arguments]
            with self._outputs[0].open("wb") as out, self._outputs[1].open("wb") as err:
                self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        wait_until(lambda: "\n" in self._ready_line() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output
        self.place = self._ready_line().split()[0]
        self.address = self.place.rpartition("/")[2]

    def _ready_line(self) -> str:
        return self._outputs[0].read_text(encoding="utf-8").partition("listening on ")[2]

    @property
    def output(self) -> str:
        return "".join(path.read_text(encoding="utf-8") for path in self._outputs if path.exists())

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(LONGEST)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Server(Process):
    """A running ``specdec serve``."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environment: dict[str, str], cold: bool) -> None:
        self._connections: list[http.client.HTTPConnection] = []
        super().__init__(folder, ("serve", "--port", "0", *arguments), environment, cold)

    @property
    def url(self) -> str:
        return f"{self.place}/v1"

    @functools.cached_property
    def _client(self) -> Any:
        import openai

        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=LONGEST)

    def client(self, **options: Any) -> Any:
        """OpenAI's own client. All of a server's share their connections, since making one takes a while."""
        return self._client.with_options(**options)

    def end(self) -> None:
        for connection in self._connections:
            connection.close()
        if "_client" in self.__dict__:
            self._client.close()
        super().end()

    def connect(self) -> http.client.HTTPConnection:
        """A connection, which is closed with the server at the latest."""
        self._connections.append(http.client.HTTPConnection(self.address, timeout=LONGEST))
        return self._connections[-1]

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, body. A body that is not bytes is sent as JSON."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, data, given)
        response = connection.getresponse()
        found = response.status, {name.lower(): text for name, text in response.getheaders()}, response.read()
        connection.close()
        return found

    def begin(self, body: Any) -> http.client.HTTPConnection:
        """Ask for a chat and do not wait for its answer. Closing the connection is leaving."""
        connection = self.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def chat(self, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        status, found, text = self.request("POST", "/v1/chat/completions", body, **headers)
        return status, found, json.loads(text)

    def metrics(self) -> dict[str, float]:
        """Samples by name, with the outcome for requests (``requests_total.completed``); buckets left out."""
        from prometheus_client.parser import text_string_to_metric_families

        samples = {}
        for family in text_string_to_metric_families(self.request("GET", "/metrics")[2].decode()):
            for sample in family.samples:
                name = ".".join([sample.name.removeprefix("specdec_"), *sample.labels.values()])
                if not sample.name.endswith("_bucket"):
                    samples[name] = sample.value
        return samples

    def wait_for(self, **wanted: float) -> None:
        """Until metrics have these values."""
        wait_until(lambda: wanted.items() <= self.metrics().items())

    def idle(self) -> None:
        self.wait_for(in_flight=0, queue_length=0)


class Local:
    """An ``app`` on a thread of this process."""

    def __init__(self, app: Any, engine: Any, most: int = 1000, *tls: Path) -> None:
        from ianvs_specdec.net.addresses import bind
        from ianvs_specdec.serving.server import server_of

        bound = bind("127.0.0.1", 0)
        self.engine, self.host = engine, bound.getsockname()[:2]
        self.address = "{}:{}".format(*self.host)
        self.server = server_of(app, engine, bound, 0.0, most, *tls)
        self._thread = threading.Thread(target=self.server.run, args=([bound],), daemon=True)
        self._thread.start()
        wait_until(lambda: self.server.started)

    def end(self) -> None:
        self.server.should_exit = True
        self._thread.join(LONGEST)
        self.engine.close()


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def serving(folder: Path, *arguments: str, cold: bool = False, **environment: str) -> Iterator[Server]:
    server = Server(folder, arguments, environment, cold)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model whose answer depends on the prompt."""
    with serving(tmp_path_factory.mktemp("server"), "--model", str(tiny), "--set", "max_tokens=24") as running:
        yield running


@pytest.fixture(scope="session")
def narrow(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The endless model, drafted from predictions: one place to work at, two to wait at."""
    arguments = ["--model", str(endless), "--backend", "PredictedOutput", "--concurrency", "1", "--queue", "2"]
    with serving(tmp_path_factory.mktemp("narrow"), *arguments) as running:
        yield running
