"""A user's working folder with a copy of the example in it, the command ``ianvs``, and an API that keeps count."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.paths import EXAMPLE

ALGORITHMS = {
    "EdgeOnly": "edge-only",
    "CloudOnly": "cloud-only",
    "RandomRouter": "random-router",
    "OracleRouter": "oracle-router",
}
TRAINED = {"LearnedRouter": "learned-router", "BudgetRouter": "budget-router", "CascadeRouter": "cascade-router"}
"""Algorithms whose routers were trained for the models that the example comes with."""
TIMINGS = (
    *("Time to First Token", "Internal Token Latency", "Latency", "Chunk Gap", "Throughput", "Speedup"),
    *("Routing Overhead", "Goodput"),
)
"""Metrics that depend on the clock, with all their percentiles and intervals."""
UNREPEATABLE = ("rank", "time", "url")
"""Columns that differ between two equal runs: ``rank`` since Throughput breaks ties."""
UNSET = ("IANVS_", "RESULT_SAVED_URL", "OPENAI_", "BACKEND_TYPE", "model_path")
"""Beginnings of the names of environment variables that a user's shell does not have."""
LONGEST = 300.0
"""Seconds after which a command is given up; no test depends on how long one takes."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def lines(self, part: str) -> list[str]:
        """The lines of standard error that contain ``part``."""
        return [line for line in self.stderr.splitlines() if part in line]


class Run:
    """A running ``ianvs``. Its output goes to files, which do not fill up as pipes do when nobody reads.

    It is a fork of a process that has imported everything already, what local ``models`` need as well; ``cold``: it is
    started as a user starts it.
    """

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        models: bool = True,
        cold: bool = False,
    ) -> None:
        self._outputs = [folder / f"{name}.txt" for name in ("stdout", "stderr")]
        self.process: subprocess.Popen[bytes] | warm.Fork
        if warm.POSSIBLE and not cold:
            self.process = warm.start("ianvs", arguments, folder, environment, self._outputs, models)
            return
        with self._outputs[0].open("wb") as out, self._outputs[1].open("wb") as err:
            self.process = subprocess.Popen(command() + arguments, cwd=folder, env=environment, stdout=out, stderr=err)

    @property
    def stderr(self) -> str:
        return self._outputs[1].read_text(encoding="utf-8", errors="replace")

    def wait(self) -> Outcome:
        try:
            code = self.process.wait(LONGEST)
        finally:
            self.process.kill()
        return Outcome(code, self._outputs[0].read_text(encoding="utf-8"), self.stderr)

    def kill(self) -> bool:
        """End it without warning; whether it was still alive."""
        self.process.kill()
        return self.process.wait(LONGEST) == -signal.SIGKILL

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Wait until something has happened, or the command has ended."""
        deadline = time.monotonic() + LONGEST
        while not happened() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)


def command() -> list[str]:
    """The console script beside this interpreter, or the module behind it."""
    script = shutil.which("ianvs", path=os.path.dirname(sys.executable))
    return [script] if script and os.name == "posix" else [sys.executable, "-m", "core.cmd.start"]


def listed(values: Sequence[str]) -> str:
    """A list as the example's files write it."""
    return "".join(f"              - {json.dumps(value)}\n" for value in values)


VALUES = r'(type: "{}"\n(?:.*\n)*?        - {}:\n(?:.*\n)*?            values:\n)(?:              - .*\n)+'
"""The values of a module's hyperparameter."""


class Workplace:
    """The folder in which a user starts ``ianvs``. Files are edited as a user would edit them, comments and all."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.example = root / "examples" / EXAMPLE.name
        self.routing = self.example / "testalgorithms" / "query-routing"
        self.workspace = root / "workspace" / EXAMPLE.name
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(UNSET)},
            "HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "NO_PROXY": "127.0.0.1",
        }
        for part in ("testenv", "testalgorithms"):
            shutil.copytree(EXAMPLE / part, self.example / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(EXAMPLE / "benchmarkingjob.yaml", self.example)
        # What needs no draft head and no trained router, since most tests bring models of their own.
        self.backends("autoregressive", "PromptLookup")
        self.algorithms(*ALGORITHMS)

    # what a user edits

    def settings(self, side: str, **values: Any) -> None:
        """Set keys in a model's settings file; commented-out ones are uncommented."""
        path = self.routing / f"{side}_settings.yaml"
        text = path.read_text(encoding="utf-8")
        for key, value in values.items():
            text, count = re.subn(rf"^(?:# )?{key}:.*$", f"{key}: {json.dumps(value)}", text, flags=re.MULTILINE)
            text += f"{key}: {json.dumps(value)}\n" if not count else ""
        path.write_text(text, encoding="utf-8")

    def backends(self, *edge: str, cloud: str = "same-as-edge") -> None:
        """Set the edge model's list of back ends and the cloud model's back end in all algorithms."""
        self._local = {*edge, cloud} != {"api", "same-as-edge"}
        for path in self.routing.glob("*_*.yaml"):
            if path.name.endswith("_settings.yaml"):
                continue
            text = path.read_text(encoding="utf-8")
            text = re.sub(VALUES.format("edgemodel", "backend"), rf"\g<1>{listed(edge)}", text)
            text = re.sub(VALUES.format("cloudmodel", "backend"), rf"\g<1>{listed([cloud])}", text)
            path.write_text(text, encoding="utf-8")

    def hyperparameter(self, file: str, module: str, name: str, values: list[str]) -> None:
        """Add a hyperparameter of several values to one algorithm's module."""
        path = self.routing / file
        before, kind, after = path.read_text(encoding="utf-8").partition(f'    - type: "{module}"')
        entry = f"        - {name}:\n            values:\n{listed(values)}"
        after = after.replace("        - backend:\n", f"{entry}        - backend:\n", 1)
        path.write_text(before + kind + after, encoding="utf-8")

    def algorithms(self, *routers: str) -> None:
        """Take all other algorithms out of the job."""
        path = self.example / "benchmarkingjob.yaml"
        text = path.read_text(encoding="utf-8")
        for router, name in (ALGORITHMS | TRAINED).items():
            if router not in routers:
                text = re.sub(rf'^ +- name: "{name}"\n(?: +#.*\n)*( +url: .*\n)', "", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")

    def metric(self, name: str) -> None:
        """Add a metric to the test environment."""
        with (self.example / "testenv" / "testenv.yaml").open("a", encoding="utf-8") as file:
            file.write(f'\n    - name: "{name}"\n      url: "./examples/{EXAMPLE.name}/testenv/metrics.py"\n')

    def data(self, source: list[dict[str, Any]] | Path) -> None:
        """Name a data file under ``test_data``; rows are written into one."""
        path = source if isinstance(source, Path) else self.root / "questions.jsonl"
        if not isinstance(source, Path):
            path.write_text("".join(json.dumps(row) + "\n" for row in source), encoding="utf-8")
        self.testenv(train_data=str(path), test_data=str(path))

    def testenv(self, **values: str) -> None:
        """Set keys of the test environment, wherever they stand in it."""
        path = self.example / "testenv" / "testenv.yaml"
        text = path.read_text(encoding="utf-8")
        for key, value in values.items():
            text, count = re.subn(rf"^( +){key}: .*$", rf"\1{key}: {json.dumps(value)}", text, flags=re.MULTILINE)
            assert count == 1, key
        path.write_text(text, encoding="utf-8")

    def on_api(self, url: str) -> None:
        """Let an API answer for both models."""
        self.backends("api")
        for side in ("edge", "cloud"):
            self.settings(side, model=f"{side}-model", api_base_url=url)

    # running it

    def start(self, *arguments: str, cold: bool = False, **environment: str) -> Run:
        job = f"examples/{EXAMPLE.name}/benchmarkingjob.yaml"
        return Run(self.root, ["-f", job, *arguments], self.environment | environment, models=self._local, cold=cold)

    def ianvs(self, *arguments: str, cold: bool = False, **environment: str) -> Outcome:
        return self.start(*arguments, cold=cold, **environment).wait()

    # what it left

    def leaderboard(self) -> dict[tuple[str, str], dict[str, str]]:
        """Rows of ``all_rank.csv`` by router and edge back end."""
        with (self.workspace / "rank" / "all_rank.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {(row["hard_example_mining"], row["edgemodel-backend"]): row for row in rows}
        assert len(found) == len(rows)
        return found

    def answers(self, router: str, backend: str) -> list[dict[str, Any]]:
        """The rows of a test case's ``answers.jsonl``."""
        return read_lines(self.root / self.leaderboard()[router, backend]["url"] / "answers.jsonl")

    def environment_of(self, router: str, backend: str) -> dict[str, Any]:
        path = self.root / self.leaderboard()[router, backend]["url"] / "environment.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def journal(self) -> list[dict[str, Any]]:
        """The answers in the journal, oldest first."""
        path = self.workspace / "journal.jsonl"
        return [line for line in read_lines(path) if "answer" in line] if path.exists() else []


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def untimed(rows: dict[tuple[str, str], dict[str, str]]) -> dict[tuple[str, str], dict[str, str]]:
    """A leaderboard without the columns that differ between two equal runs."""
    return {
        key: {name: cell for name, cell in row.items() if not name.startswith(TIMINGS) and name not in UNREPEATABLE}
        for key, row in rows.items()
    }


@dataclass(frozen=True)
class Ask:
    """One request that reached the API. ``prompt`` is a fingerprint of model and messages."""

    model: str
    prompt: str
    messages: tuple[tuple[str, str], ...]
    authorization: str


class CountingAPI(ThreadingHTTPServer):
    """A chat completions API whose answers are a function of the prompt, and which knows what it was asked.

    Every answer names the fingerprint of its prompt, so an answer tells which prompt it belongs to. ``slow``: seconds
    between its three pieces. ``dies_at``: from this request on (counted from 0) it misbehaves as ``death`` says:
    "cut" (drops the connection in mid-answer), "hang", "close" (stops listening), or an HTTP status whose message
    repeats the request's Authorization header.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: list[Ask] = []
        self.slow = 0.0
        self.dies_at: int | None = None
        self.death: str | int = "cut"
        self.closing = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def note(self, ask: Ask) -> int:
        with self._lock:
            self.asked.append(ask)
            return len(self.asked) - 1

    def stop(self) -> None:
        """Answer nobody any more; may be called twice."""
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed in mid-request are part of the tests."""


@contextmanager
def serving(port: int = 0) -> Iterator[CountingAPI]:
    api = CountingAPI(port)
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.stop()


def fingerprint(model: str, messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps([model, messages]).encode()).hexdigest()[:20]


class _Handler(BaseHTTPRequestHandler):
    server: CountingAPI

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        api = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = body["messages"]
        authorization = self.headers.get("Authorization", "")
        prompt = fingerprint(body["model"], messages)
        pairs = tuple((message["role"], message["content"]) for message in messages)
        number = api.note(Ask(body["model"], prompt, pairs, authorization))
        death = api.death if api.dies_at is not None and number >= api.dies_at else None
        if isinstance(death, int):
            self._refuse(death, authorization)
        elif death == "hang":
            api.closing.wait(LONGEST)
        elif death == "close":
            api.stop()
            self.connection.close()
        else:
            self._answer(prompt, sum(len(text.split()) for _, text in pairs), cut=death == "cut")

    def _refuse(self, status: int, authorization: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": f"no entry with {authorization}"}}).encode())

    def _answer(self, prompt: str, prompt_tokens: int, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        letter = "ABCD"[int(prompt, 16) % 4]
        for piece in (f"The answer is {letter}", ". ", prompt):
            self._event(choices=[{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
            if cut:
                self.connection.close()
                return
            if self.server.slow:
                time.sleep(self.server.slow)
        self._event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        tokens = 4 + int(prompt, 16) % 7
        self._event(
            usage={
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
            }
        )
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


def questions(knowledge: int, dialogues: int = 0) -> list[dict[str, Any]]:
    """Rows of the embedded sets: questions with one right letter, then dialogues of two turns."""
    rows: list[dict[str, Any]] = []
    for name, count in (("knowledge", knowledge), ("open-ended", dialogues)):
        with (EXAMPLE / "dataset" / name / "test.jsonl").open(encoding="utf-8") as file:
            rows += [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    return rows
