"""A fake guidellm, which writes a report in guidellm's format from a rule, and a fake server for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

GUIDELLM = '''
"""Reads the scenario and the arrivals as guidellm does, without waiting."""
import json, os, sys, urllib.request

spec = json.load(open(sys.argv[sys.argv.index("--config") + 1]))["spec"]
rows = [json.loads(line) for line in open(spec["data"][0]["path"])]
base = spec["backend"]["target"]
rule = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(base + "/rule"))
print("said last", flush=True)
if rule.get("breaks"):
    sys.exit(3)
BEGIN = 1000.0
groups = {"successful": [], "incomplete": [], "errored": []}
for index, row in enumerate(rows):
    at = row["relative_timestamp"]
    sent = BEGIN + at + 0.001
    times = {"targeted_start": BEGIN + at, "request_start": sent}
    request = {"info": {"settings": {"relative_timestamp": at}, "timings": times, "error": None}}
    if index in rule.get("unreported", ()):
        continue
    if index in rule.get("refused", ()):
        request["info"] |= {"status": "errored", "error": "HTTPStatusError(\\"Client error '429 Too Many Requests'\\")"}
        groups["errored"].append(request)
    elif index in rule.get("failed", ()):
        request["info"] |= {"status": "errored", "error": "ReadError('')"}
        groups["errored"].append(request)
    else:
        tokens, pause = row["output_tokens_count"], rule["pause"]
        first = sent + rule["ttft"]
        last = first + pause * (tokens - 1)
        times |= {"first_token_iteration": first, "last_token_iteration": last, "request_end": last}
        request["info"]["status"] = "completed"
        output = row["messages"][-1]["content"] + rule["text"]
        request |= {"prompt_tokens": 5, "output_tokens": tokens, "output": output}
        groups["successful"].append(request)
json.dump({"benchmarks": [{"requests": groups}]}, open(spec["outputs"][0]["path"], "w"))
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(base + "/ended")
'''


class Stub(ThreadingHTTPServer):
    """A fake server with the rule of the fake guidellm. ``rounds``: number of rounds so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rule: dict[str, Any] = {"ttft": 0.1, "pause": 0.01, "text": "!"}
        self.rounds = 0
        self.dies_after = 1 << 30
        self.page = "# no metrics of ours\nother_requests_total 3\n"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        stub = self.server
        stub.rounds += self.path == "/ended"
        pages = {"/v1/models": json.dumps({"data": [{"id": "m"}]}), "/rule": json.dumps(stub.rule)}
        text = {**pages, "/metrics": stub.page, "/ended": ""}.get(self.path)
        if text is None or (self.path == "/v1/models" and stub.rounds > stub.dies_after):
            # A stopped server does not answer.
            self.close_connection = True
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr("ianvs_specdec.load.servers.DEAD_SECONDS", 0.0)
    monkeypatch.setattr("ianvs_specdec.load.servers.RETRY_SECONDS", 0.01)
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def guidellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace guidellm by the fake."""
    package = tmp_path / "packages" / "guidellm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(GUIDELLM)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))
    return package


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"question {n}?", "answer": ""}) + "\n" for n in range(4)))
    return path
