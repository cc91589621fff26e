"""Routing decisions, what clients see of them, and what routers learn."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.types import Query, Sampling
from ianvs_specdec.gateway.case import Side
from ianvs_specdec.gateway.jobs import query_of_chat
from ianvs_specdec.gateway.models import router_named
from ianvs_specdec.plugin import observers
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.learned.probe import ProbeClassifier, Readout
from ianvs_specdec.routing.routers.base import Decision, Router
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.routing.routers.latency import LatencyRouter
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from ianvs_specdec.serving.requests import parse_chat
from tests.serving.conftest import wait_until
from tests.support.paths import EXAMPLE

from .conftest import Opens, Says, Words, pair, side

SHIPPED = EXAMPLE / "models" / "router"


def test_routing_in_headers_and_body(gate: Opens) -> None:
    opened, _, _ = pair(gate)
    status, headers, body = opened.chat("a hard one")
    assert (status, body["choices"][0]["message"]["content"]) == (200, "from the cloud")
    assert body["choices"][0]["logprobs"] is None
    routing = body["routing"]
    assert isinstance(routing.pop("seconds"), float)
    assert routing.pop("cost") == 3
    assert routing == {"side": "cloud", "model": "large", "router": "Words", "score": 0.9, "hard": True}
    assert (headers["x-specdec-side"], headers["x-specdec-score"]) == ("cloud", "0.9")
    assert "x-specdec-reason" not in headers
    first, *_, last = opened.stream("an easy one")
    assert (first["routing"]["side"], first["id"]) == ("edge", last["id"])
    for named in ("edge", "cloud"):
        _, headers, body = opened.chat("a hard one", named)
        assert headers["x-specdec-side"] == named
        assert body["choices"][0]["message"]["content"] == f"from the {named}"


def test_router_needs_one_choice(gate: Opens) -> None:
    opened, _, _ = pair(gate)
    status, _, body = opened.chat("a hard one", n=2)
    assert (status, body["error"]["param"]) == (400, "n")
    alone, both = (opened.chat("a hard one", "cloud", n=n)[2] for n in (1, 2))
    assert [choice["message"] for choice in both["choices"]] == [alone["choices"][0]["message"]] * 2
    assert both["routing"] == {**alone["routing"], "cost": 2 * alone["routing"]["cost"]}


def test_gateway_metrics(gate: Opens) -> None:
    opened, _, _ = pair(gate)
    for text in ("hard", "easy", "easy"):
        opened.says(text)
    opened.says("easy", "cloud")
    assert opened.chat("easy", "clod")[0] == 404
    found = opened.metrics()
    assert [found[f"router_decisions_total.{name}"] for name in ("edge", "cloud")] == [2, 1]
    assert [found[f"requests_total.completed.{name}"] for name in ("edge", "cloud")] == [2, 2]
    assert [found[f"cost_total.{name}"] for name in ("edge", "cloud")] == [0, 6]
    assert [found[f"gateway_requests_total.{name}"] for name in ("completed", "rejected")] == [4, 1]
    assert (found["router_seconds_count"], found["cloud_share"]) == (3, 1 / 3)


def test_model_names(gate: Opens) -> None:
    opened, _, _ = pair(gate)
    for name, answered in (("router-0.1", "cloud"), ("router-0.95", "edge"), ("router-1", "edge"), ("router", "edge")):
        assert opened.says("easy", name) == f"from the {answered}", name
    wrong = ("router-1.5", "router-x", "router-200%", "router-30%%", "router-nan", "router-\u0660.3", "edge-0.3", "m")
    for name in wrong:
        status, _, body = opened.chat("easy", name)
        assert status == 404
        assert "'router', 'edge', 'cloud'" in body["error"]["message"]
        assert ("router-0.3 and router-30%" in body["error"]["message"]) == name.startswith("router-")
    status, _, body = opened.chat("easy", "router-30%")
    assert status == 404
    assert "Words has no folder with score_quantiles" in body["error"]["message"]
    names = ("router", "router-0.3", "router-.3", "router-1.000", "router-30%25")
    assert [opened.get(f"/v1/models/{name}") for name in names] == [200, 200, 200, 200, 404]


def test_share_of_a_trained_router(gate: Opens) -> None:
    router = BudgetRouter(LearnedRouter(str(SHIPPED)), cloud_share=1.0)
    threshold = router.inner.threshold
    opened, _, _ = pair(gate, router)
    assert opened.says("What is the capital of Siboor?", "router-0%") == "from the edge"
    assert opened.says("What is the capital of Siboor?", "router-100%") == "from the cloud"
    assert router.inner.threshold == threshold
    assert router._spending.count == 2
    falling = [router_named(router, f"router-{share}%").inner.threshold for share in (100, 70, 30, 0)]
    assert falling == sorted(set(falling))


def test_budget_counts_cost_of_cascade(gate: Opens) -> None:
    class Slow:
        """Makes others hear late of the edge's answer."""

        def began(self, side: str, data: Any) -> None: ...

        def ended(self, side: str, data: Any, response: Any) -> None:
            time.sleep(0.2 * (side == "edge"))

    observers.subscribe(slow := Slow())
    cascade = CascadeRouter("mean_probability", 0.5)
    router = BudgetRouter(cascade, cost_per_1000=1e6, price_completion=1e6, window=10)
    opened, _, _ = pair(gate, router, doubt=9.0)
    assert opened.says("which one?") == "from the cloud"
    wait_until(lambda: router._spending._granted[-1] == 3)
    assert (router._charges, slow is not None) == ({}, True)


def test_private_chats_stay_on_the_edge(gate: Opens) -> None:
    opened, _, cloud = pair(gate, PrivacyRouter(Words()))
    secret = "write to jane.doe@example.com"
    history = [("user", "hard?"), ("assistant", secret), ("user", "a hard one")]
    messages = [{"role": role, "content": text} for role, text in history]
    _, headers, body = opened.post("/v1/chat/completions", {"model": "router", "messages": messages})
    assert (headers["x-specdec-side"], headers["x-specdec-reason"]) == ("edge", "personal data: email")
    assert secret not in str((headers, body))
    for more in ({"stop": [secret]}, {"chat_template_kwargs": {"about": [{"who": secret}]}}):
        assert opened.says("a hard one", **more) == "from the edge"
    assert cloud.asked == []
    assert opened.says("a hard one", stop=["\n"]) == "from the cloud"


def test_reason_is_escaped_in_header(gate: Opens) -> None:
    class Tells(Words):
        def decide(self, query: Query) -> Decision:
            return Decision(0.1, False, "\x01a\x7f\r\n\N{GREEK SMALL LETTER ALPHA}b" + "c" * 1_000_000)

    opened, _, _ = pair(gate, Tells())
    status, headers, _ = opened.chat("which?")
    assert (status, headers["x-specdec-reason"]) == (200, "a b" + "c" * 196)


def test_latency_is_learned_from_live_requests(gate: Opens) -> None:
    class Slow(Says):
        def generate(self, *arguments: Any, **more: Any) -> Any:
            answer = super().generate(*arguments, **more)
            answer.trace.chunks = [(9.0, 3)]
            return answer

    edge, cloud = Says("from the edge"), Slow("from the cloud")
    opened = gate(side("small", edge), side("large", cloud), LatencyRouter(Words()), slo={"latency": 1.0})
    assert opened.says("a hard one") == "from the cloud"
    wait_until(lambda: opened.chat("a hard one")[2]["routing"].get("reason") == "latency: the cloud is too slow")


@pytest.mark.parametrize(("doubt", "answered", "stream"), [(0.0, "edge", True), (9.0, "cloud", False)])
def test_cascade(gate: Opens, doubt: float, answered: str, stream: bool) -> None:
    opened, edge, cloud = pair(gate, CascadeRouter("mean_probability", 0.5), doubt=doubt)
    if stream:
        first, *others = opened.stream("which one?")
        said = "".join(one["choices"][0]["delta"].get("content", "") for one in others)
        assert (said, first["routing"]["side"]) == (f"from the {answered}", answered)
    else:
        assert opened.says("which one?", logprobs=False) == f"from the {answered}"
    assert (len(edge.asked), len(cloud.asked)) == (1, answered == "cloud")


def test_probe_reads_hidden_states_of_the_edge(gate: Opens, tiny_model: Path, tmp_path: Path) -> None:
    columns = 2 * 64
    linear = Readout(np.zeros(columns), np.ones(columns), np.random.default_rng(0).normal(size=columns), 0.0)
    probe = ProbeClassifier(linear, (0, 2), "edge", FileDigests(None).folder(tiny_model))
    trained = TrainedRouter("probe", probe, Calibration(), 0.5, np.zeros(1, np.uint64))
    trained.save(tmp_path / "probe")
    settings = ModelSettings.parse({"model": str(tiny_model), "dtype": "float32", "max_tokens": 4})
    llm = settings.llm("autoregressive")
    edge = Side("small", settings, "autoregressive", llm)
    opened = gate(edge, side("large", Says("from the cloud")), LearnedRouter(str(tmp_path / "probe")))
    for text in ("question 1", "question 2"):
        routing = opened.chat(text)[2]["routing"]
        states = llm.encode([{"role": "user", "content": text}], settings.sampling, (0, 2)).states
        expected = float(trained.score_states([Query((text,))], states[None])[0])
        assert routing["score"] == pytest.approx(expected, abs=1e-4)
        assert routing["side"] == ("cloud" if routing["score"] >= 0.5 else "edge")


def test_inference_then_mining(gate: Opens) -> None:
    class Looks(Router):
        def score(self, query: Query) -> float:
            raise AssertionError

        def decide(self, data: Any) -> Decision:
            return Decision(0.7, data["completion"] == "from the edge")

    opened, edge, _ = pair(gate, Looks(), first=True)
    assert opened.says("easy") == "from the cloud"
    assert len(edge.asked) == 1


def test_router_error_reveals_no_text(gate: Opens, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Router):
        def score(self, query: Query) -> float:
            raise ZeroDivisionError(query.turns[0])

    opened, _, _ = pair(gate, Breaks())
    status, _, body = opened.chat("the secret")
    assert (status, body["error"]["message"]) == (500, "the router failed; the server's log says why")
    assert "ZeroDivisionError (test_decisions.py:" in caplog.text
    assert "the secret" not in caplog.text


def test_observer_error_reveals_no_text(gate: Opens, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks:
        def began(self, side: str, data: Any) -> None: ...

        def ended(self, side: str, data: Any, response: Any) -> None:
            raise KeyError(data["query"])

    observers.subscribe(breaks := Breaks())
    opened, _, _ = pair(gate, CascadeRouter("mean_probability", 0.5))
    assert opened.says("the secret") == "from the edge"
    assert "a router did not learn: KeyError (test_decisions.py:" in caplog.text
    assert "the secret" not in caplog.text
    assert breaks is not None


def test_chat_as_query() -> None:
    text = "Which?\nA. one\nB. two"
    body = b'{"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": %s}]}'
    chat = parse_chat(body % json.dumps(text).encode(), ("m",), Sampling())
    assert query_of_chat(chat) == Query((text,), chat.id, scorer="choice", system="Be brief.")
