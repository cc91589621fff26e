"""A user's working folder with a copy of the example in it, and the command ``ianvs``."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import journals, warm
from tests.support.jsonl import read_jsonl
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
        return read_jsonl(self.root / self.leaderboard()[router, backend]["url"] / "answers.jsonl")

    def environment_of(self, router: str, backend: str) -> dict[str, Any]:
        path = self.root / self.leaderboard()[router, backend]["url"] / "environment.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def journal(self) -> list[dict[str, Any]]:
        """The answers in the journal, oldest first."""
        return journals.answers(self.workspace)


def untimed(rows: dict[tuple[str, str], dict[str, str]]) -> dict[tuple[str, str], dict[str, str]]:
    """A leaderboard without the columns that differ between two equal runs."""
    return {
        key: {name: cell for name, cell in row.items() if not name.startswith(TIMINGS) and name not in UNREPEATABLE}
        for key, row in rows.items()
    }


def questions(knowledge: int, dialogues: int = 0) -> list[dict[str, Any]]:
    """Rows of the embedded sets: questions with one right letter, then dialogues of two turns."""
    rows: list[dict[str, Any]] = []
    for name, count in (("knowledge", knowledge), ("open-ended", dialogues)):
        with (EXAMPLE / "dataset" / name / "test.jsonl").open(encoding="utf-8") as file:
            rows += [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    return rows
