"""The page ``/ui``: access, events, and display in a browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")

from starlette.types import Message

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.types import Completion, Sampling, Step, Trace
from ianvs_specdec.serving import ui
from ianvs_specdec.serving.app import Service, create_app
from ianvs_specdec.serving.engine import Job, RequestQueue
from ianvs_specdec.serving.metrics import Metrics
from tests.support.browser import Browser, find_browser
from tests.support.instant import InstantLLM
from tests.support.pages import events, requested, rows_of

from .conftest import Local, Server, serving, wait_until

STEPS = [Step(4, 2, 3, 5), Step(4, 0, 1, 5), Step(4, 4, 4, 5)]
MARKUP = "<script>document.title = 'stolen'</script><img src=x onerror=\"document.title = 'stolen'\">"
ROUTING = {"side": "cloud", "score": float("nan"), "reason": "long", "cost": 0.25}


class Drafting(InstantLLM):
    """Answers with the question as its first token, then with ``STEPS``, the last two of them as one piece. Fails where
    the question is too much for it."""

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        question = messages[-1]["content"]
        if question == "fail":
            raise RuntimeError
        pieces = [(question, 1), (" and two drafts", 3), (" and four of five", 5)]
        for text, tokens in pieces:
            on_chunk(text, tokens)
        text = "".join(text for text, _ in pieces)
        return Completion(text, [1] * 9, 7, 9, "stop", Trace([(0.0, 9)], STEPS))


class Looked(Local):
    """A server with the page."""

    def __init__(self, routing: dict[str, Any] | None) -> None:
        metrics = Metrics("m", "instant")
        engine = RequestQueue(Drafting("m"), 0, 1, metrics)
        submit = engine.submit

        def routed(chat: Any) -> Job:
            job = submit(chat)
            job.routing = routing
            return job

        engine.submit = routed  # type: ignore[method-assign]
        app = create_app(Service(("m",), Sampling(), "", 60.0, 1 << 20, local_only=True), engine, metrics)
        app.routes.extend(ui.Feed(engine).routes())
        super().__init__(app, engine)

    def ask(self, text: str) -> None:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            response.read()
        connection.close()

    def status(self, path: str, headers: dict[str, str]) -> int:
        with requested(self.address, path, headers) as response:
            return response.status


@pytest.fixture
def looked(request: pytest.FixtureRequest) -> Iterator[Looked]:
    found = Looked(getattr(request, "param", None))
    yield found
    found.end()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("needs a Chromium browser, e.g. the Debian package chromium, or its path in SPECDEC_CHROMIUM")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def opened(browser: Browser, address: str, wanted: str) -> Callable[[str], Any]:
    """The page, once the expression ``wanted`` is true in it."""
    browser.send("Page.navigate", url=f"http://{address}/ui")
    browser.wait_for("Page.loadEventFired")
    wait_until(lambda: browser.evaluate(wanted))
    assert browser.failures == []
    return browser.evaluate


# Who may look


@pytest.mark.parametrize("arguments", [["--host", "0.0.0.0"], ["--api-key-env", "KEY"]], ids=["host", "key"])
def test_ui_needs_loopback_and_no_key(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "m", "--ui", *arguments]) == 2
    assert "--ui shows all answers to every user of this machine" in capsys.readouterr().err


def test_no_page_without_option(server: Server) -> None:
    assert [server.request("GET", path)[0] for path in ("/ui", "/ui/events")] == [404, 404]


@pytest.mark.parametrize("path", ["/ui", "/ui/events", "/metrics", "/v1/models"])
def test_foreign_hosts_and_origins_are_rejected(looked: Looked, path: str) -> None:
    def status(host: str, **headers: str) -> int:
        return looked.status(path, {"Host": host, **headers})

    assert status("evil.example") == status("127.0.0.1.evil.example") == status("[::1") == 403
    assert status("localhost:1", Origin="https://evil.example") == status("localhost:1", Origin="null") == 403
    assert status("localhost:1", Origin="http://localhost:1") == status("[::1]:80") == status("127.1.0.1") == 200


def test_content_security_policy(looked: Looked) -> None:
    with requested(looked.address, "/ui") as response:
        policy, text = response.headers["Content-Security-Policy"], response.read().decode()
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not any(mark in text for mark in ("src=", "@import", "url(", "innerHTML", "insertAdjacentHTML", "outerHTML"))


# What it is told


@pytest.mark.parametrize("looked", [ROUTING], indirect=True)
def test_events_have_steps_and_routing(looked: Looked) -> None:
    looked.ask("why")
    looked.ask("fail")
    answer, failure = rows_of(looked.address, 2)
    assert answer["pieces"] == [["why", 1], [" and two drafts", 3], [" and four of five", 5]]
    assert answer["accepted_in"] == [0, 2, 4]
    assert (answer["drafted"], answer["accepted"], answer["steps"], answer["emitted"]) == (12, 6, 3, 8)
    assert (answer["model"], answer["question"], answer["tokens"], answer["end"]) == ("m", "why", 9, "stop")
    assert answer["routing"] == {"side": "cloud", "score": None, "reason": "long", "cost": 0.25}
    assert 0 < answer["first"] <= answer["latency"]
    assert (failure["end"], failure["error"]) == ("failed", "this request failed; the server's log says why")


def test_rejected_request_is_shown(looked: Looked) -> None:
    looked.engine.draining = True
    looked.ask("late")
    looked.engine.draining = False
    (row,) = rows_of(looked.address, 1)
    assert (row["question"], row["end"], row["error"]) == ("late", "shutdown", "this server is shutting down")


def test_memory_of_the_page_is_bounded(looked: Looked) -> None:
    for number in range(ui.ROWS + 5):
        looked.ask(f"{number}" * 8_000 if number == ui.ROWS else f"{number}")
    rows = rows_of(looked.address, ui.ROWS)
    assert [row["question"] for row in rows[:2]] == ["5", "6"]
    assert len(rows) == ui.ROWS
    long = rows[ui.ROWS - 5]
    assert len(long["question"]) == ui.QUESTION
    assert (long["pieces"], long["room"] < 0, long["tokens"]) == ([], True, 9)


def test_stalled_page_is_disconnected(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "STALLED_SECONDS", 0.05)
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "headers": [(b"host", b"localhost")]}
    feed = ui.Feed(looked.engine)
    asyncio.run(asyncio.wait_for(feed(scope, receive, send), 60))
    assert len(sent) == 2


def test_server_stops_with_open_page(tiny: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model", str(tiny), "--ui") as running:
        assert f"requests and answers are shown at http://{running.address}/ui" in running.output
        with requested(running.address, "/ui/events") as response:
            told = events(response)
            assert next(told)["rows"] == ui.ROWS
            assert running.stop(signal.SIGTERM) == 0
            assert list(told) == []


# In a browser


def test_browser_shows_markup_as_text(looked: Looked, browser: Browser) -> None:
    page = opened(browser, looked.address, "byId('live').textContent === 'connected'")
    looked.ask(MARKUP)
    wait_until(lambda: page("rows.size === 1 && rows.get(0).end === 'stop' && !waiting"))
    assert page("byId('answer').textContent") == f"{MARKUP} and two drafts and four of five"
    assert page("document.title") == "specdec serve"
    assert page("document.querySelectorAll('main script, main img').length") == 0
    marked = "[...byId('answer').children].map((piece) => piece.dataset.drafts ?? '')"
    assert page(marked) == ["", "2", "4"]
    assert page("byId('drafts').children[1].textContent") == "2.67"


def test_browser_selects_rows_by_keys(looked: Looked, browser: Browser) -> None:
    for question in ("one", "two", "fail"):
        looked.ask(question)
    page = opened(browser, looked.address, "rows.size === 3 && !waiting")
    assert page("[...byId('head').children].filter((head) => head.offsetWidth).map((head) => head.innerText)") == [
        *("Time", "Model", "Tokens", "Accepted", "First token", "Latency", "End")
    ]
    assert page("byId('counts').textContent") == "3 requests: 0 in progress, 1 failed"
    assert page("byId('question').textContent") == "fail"
    page("rows.get(2).pick.focus()")
    browser.press("ArrowDown")
    assert page("byId('question').textContent") == "two"
    looked.ask("three")
    wait_until(lambda: page("rows.size === 4 && !waiting"))
    assert page("byId('question').textContent") == "two"


def test_browser_drops_answer_of_failed_side(looked: Looked, browser: Browser) -> None:
    page = opened(browser, looked.address, "byId('live').textContent === 'connected'")
    told = {"id": 0, "at": 0, "time": 1, "model": "m"}
    for side, pieces in (("cloud", ["half ", "an ", "answer"]), ("edge", ["from the ", "edge"])):
        event = {**told, "routing": {"side": side}, "pieces": [[piece, 1] for piece in pieces]}
        page(f"receive({json.dumps(event)}), draw()")
    assert page("byId('answer').textContent") == "from the edge"


@pytest.mark.parametrize("looked", [ROUTING], indirect=True)
def test_browser_shows_routing(looked: Looked, browser: Browser) -> None:
    looked.ask("one")
    page = opened(browser, looked.address, "rows.size === 1 && rows.get(0).end && !waiting")
    cells = "[...rows.get(0).node.children].map((cell) => cell.innerText)"
    assert page(cells)[1:5] == ["m", "cloud", "\N{EN DASH}", "9"]
    assert page(cells)[-3:] == ["0.25", "stop", "long"]
    figures = "['share', 'cost'].map((id) => byId(id).querySelector('b').innerText)"
    assert page(figures) == ["100 %", "0.25"]
