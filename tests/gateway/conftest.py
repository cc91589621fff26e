"""A gateway in this process between stub models or servers that fail on purpose."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.gateway.app import create_gateway
from ianvs_specdec.gateway.case import Case, Side
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.routing.routers.base import Router
from tests.serving.conftest import LONGEST, Local
from tests.support.stub_server import StubServer


class Says(LLM):
    """Answers with ``text``, word by word, once ``go`` is set; ``doubt``: negative log-probability of each word."""

    backend, local, concurrent = "says", True, True

    def __init__(self, text: str, doubt: float = 0.0) -> None:
        super().__init__("m")
        self.text, self.doubt, self.asked = text, doubt, list[Any]()
        self.go = threading.Event()
        self.go.set()

    def load(self) -> None: ...

    def identity(self, digests: Any) -> dict[str, Any]:
        return {"model": "m"}

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        self.asked.append(messages)
        while not self.go.wait(0.01):
            on_chunk("", 0)
        words = self.text.split(" ")
        pieces = [word + " " * (place < len(words) - 1) for place, word in enumerate(words)]
        for piece in pieces:
            on_chunk(piece, 1)
        trace = Trace([(0.001, 1)] * len(words))
        if sampling.logprobs:
            trace.confidence = [(-self.doubt, self.doubt, 1.0)] * len(words)
            trace.characters = [len(piece) for piece in pieces]
        return Completion(self.text, [1] * len(words), 5, len(words), "stop", trace)


class Words(Router):
    """Hard is what says so."""

    concurrent = True

    def score(self, query: Query) -> float:
        return 0.9 if "hard" in query.turns[-1] else 0.2


def side(name: str, llm: LLM, **settings: Any) -> Side:
    api = {"model": name, "backend": "api", "api_base_url": "http://127.0.0.1:9/v1"}
    return Side(name, ModelSettings.parse({**api, **settings}), llm.backend, llm)


def stub_side(stub: StubServer, **settings: Any) -> Side:
    found = ModelSettings.parse({"model": "far", "backend": "api", "api_base_url": stub.url, **settings})
    return Side("far", found, "api", found.llm("api"))


def asking(text: str, model: str = "router", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


class Gate(Local):
    """A running gateway."""

    def __init__(self, case: Case, *, fallback: float | None = None, queue: int = 100, key: str = "") -> None:
        for one in case.sides.values():
            one.llm.load()
        limits = case.sides["edge"].settings.sampling, key, LONGEST, 100_000, not key
        app, self.gateway = create_gateway(case, limits, queue, 8, fallback)
        super().__init__(app, self.gateway, 100)

    def send(self, path: str, body: Any, **headers: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self.host, timeout=LONGEST)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        return connection

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        connection = self.send(path, body, **headers)
        response = connection.getresponse()
        found = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return *found[:2], json.loads(found[2])

    def get(self, path: str) -> int:
        """The status."""
        connection = http.client.HTTPConnection(*self.host, timeout=LONGEST)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status

    def chat(self, text: str, model: str = "router", **more: Any) -> tuple[int, dict[str, str], Any]:
        return self.post("/v1/chat/completions", asking(text, model, **more))

    def chats(self, number: int, text: str, model: str = "router") -> list[http.client.HTTPConnection]:
        """Requests whose answers are not read yet."""
        return [self.send("/v1/chat/completions", asking(text, model)) for _ in range(number)]

    def says(self, text: str, model: str = "router", **more: Any) -> str:
        """The answer's text."""
        status, _, body = self.chat(text, model, **more)
        assert status == 200, body
        return str(body["choices"][0]["message"]["content"])

    def stream(self, text: str, model: str = "router") -> list[dict[str, Any]]:
        connection = self.send("/v1/chat/completions", asking(text, model, stream=True))
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels: ``requests_total.completed.edge``."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.gateway.metrics.text().decode())
        return {
            ".".join([one.name.removeprefix("specdec_"), *one.labels.values()]): one.value
            for family in families
            for one in family.samples
        }


Opens = Callable[..., Gate]


@pytest.fixture
def gate() -> Iterator[Opens]:
    """Opens gateways, and ends them."""
    with ExitStack() as ending:

        def open_one(edge: Side, cloud: Side, router: Any = None, *, first: bool = False, **options: Any) -> Gate:
            slo = options.pop("slo", {})
            found = Gate(Case({"edge": edge, "cloud": cloud}, router or Words(), first, slo), **options)
            ending.callback(found.end)
            return found

        yield open_one


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server = StubServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def pair(gate: Opens, router: Any = None, **options: Any) -> tuple[Gate, Says, Says]:
    """A gateway between two models that say where they are."""
    edge, cloud = Says("from the edge", options.pop("doubt", 0.0)), Says("from the cloud")
    found = gate(side("small", edge, logprobs=True), side("large", cloud, price_completion=1e6), router, **options)
    return found, edge, cloud
