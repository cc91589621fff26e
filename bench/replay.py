"""``python -m bench.replay --data mmlu_test.jsonl.gz``: what it takes ``ianvs`` to replay a large job.

Copies the example, converts the questions, fills the journal with answers that no model had to give, and times the
command, each time in a fresh process, until the leaderboard is written. Prints wall and processor seconds, the peak of
resident memory, and how many times what ``json.loads`` takes over the job's answers.jsonl.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from bench.command import EXAMPLE, columns
from ianvs_specdec.backends.base import NO_HINTS, OnChunk
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling, Step, Trace
from ianvs_specdec.records.identity import machine

JOB = Path("examples") / EXAMPLE.name
TOKENS = 20
"""Of an answer."""


class InstantLLM(engine_backend("autoregressive")):  # type: ignore[misc]
    """Stands in for the back end ``autoregressive``, whose answers it forges: one token per chunk and step."""

    def load(self) -> None:
        """Nothing to load."""

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        prompt = messages[-1]["content"]
        chance = random.Random(prompt)
        seconds, chunks = 0.0, []
        for _ in range(TOKENS):
            seconds += chance.uniform(0.005, 0.015)
            chunks.append((seconds, 1))
        text = f"The answer is {chance.choice('ABCD')}: of the four options it alone fits what was asked."
        ids = [chance.randrange(32_000) for _ in range(TOKENS)]
        trace = Trace(chunks, [Step(0, 0, 1, 1)] * (TOKENS - 1), [(3, 0.0005)] if chance.random() < 0.05 else [])
        return Completion(text, ids, len(prompt) // 4, TOKENS, "stop", trace)

    def hardware(self) -> Mapping[str, Any]:
        return {**machine(), "device": "cpu", "threads": 1}

    def close(self) -> None:
        """Nothing to release."""


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as name:
        folder = Path(name)
        # In a process of its own: what this one holds would be counted as memory of the commands it starts.
        maker = multiprocessing.get_context("spawn").Process(target=prepare, args=(folder, options.data, options.rows))
        maker.start()
        maker.join()
        if maker.exitcode:
            return 1
        costs = [measure(folder) for _ in range(options.repeats)]
        figures = [statistics.median(column) for column in zip(*costs, strict=True)]
        row = [str(_replayed(folder)), *(f"{figure:.2f}" for figure in figures)]
    print("\n".join(columns(("rows", "wall s", "user s", "system s", "peak MB", "x json"), [row])))
    print(f"medians of {options.repeats}")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.replay", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="MMLU questions, as data prepare mmlu reads them")
    add("--rows", type=positive, metavar="N", help="take N questions, spread evenly over the file (all)")
    add("--repeats", type=positive, default=3, metavar="R")
    options = parser.parse_args(argv)
    options.data = options.data.resolve()
    return options


def prepare(folder: Path, data: Path, limit: int | None) -> None:
    """Make ``folder`` a place to start ``ianvs`` in: the example with one test case, and a journal that answers it."""
    from ianvs_specdec.backends import BACKENDS
    from ianvs_specdec.commands.cli import main as specdec
    from ianvs_specdec.plugin.models import EdgeModel
    from ianvs_specdec.plugin.processor import DatasetProcessor

    for part in ("testenv", "testalgorithms"):
        shutil.copytree(EXAMPLE / part, folder / JOB / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE / "benchmarkingjob.yaml", folder / JOB)
    rows = folder / "mmlu.jsonl"
    limited = [] if limit is None else ["--limit", str(limit)]
    if specdec(["data", "prepare", "mmlu", "--from", str(data), "--out", str(rows), *limited]):
        raise SystemExit(1)
    model = folder / "model"
    model.mkdir()
    # Looked at to tell models apart, never loaded.
    (model / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    save_file({"wte.weight": np.zeros((1, 1), np.float32)}, model / "model.safetensors")
    settings = _configure(folder, rows, model)

    os.chdir(folder)
    os.environ["RESULT_SAVED_URL"] = str(folder / "workspace" / EXAMPLE.name / "edge-only")
    BACKENDS["autoregressive"] = "bench.replay:InstantLLM"
    edge = EdgeModel(**settings, backend="autoregressive")
    for row in DatasetProcessor()(_Dataset(rows)).x:
        edge.predict(row)
    edge.cleanup()


class _Dataset:
    """What a dataset processor is given."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            pairs = [(row["question"], row["answer"]) for row in map(json.loads, file)]
        self.x, self.y = [list(side) for side in zip(*pairs, strict=True)]


def _configure(folder: Path, rows: Path, model: Path) -> dict[str, Any]:
    """Edit the YAML files; the edge model's settings."""

    def edit(path: str, change: Callable[[Any], object]) -> Any:
        file = folder / JOB / path
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        change(content)
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return content

    def only_edge(content: Any) -> None:
        algorithms = content["benchmarkingjob"]["test_object"]["algorithms"]
        algorithms[:] = [entry for entry in algorithms if entry["name"] == "edge-only"]

    def one_backend(content: Any) -> None:
        (module,) = (entry for entry in content["algorithm"]["modules"] if entry["type"] == "edgemodel")
        for hyperparameter in module["hyperparameters"]:
            if "backend" in hyperparameter:
                hyperparameter["backend"]["values"] = ["autoregressive"]

    data = {"train_data": str(rows), "test_data": str(rows)}
    edit("benchmarkingjob.yaml", only_edge)
    edit("testalgorithms/query-routing/edge_only.yaml", one_backend)
    edit("testenv/testenv.yaml", lambda content: content["testenv"]["dataset"].update(data))
    settings: dict[str, Any]
    for side in ("cloud", "edge"):
        path = f"testalgorithms/query-routing/{side}_settings.yaml"
        settings = edit(path, lambda content: content.update(model=str(model)))
    return settings


def measure(folder: Path) -> tuple[float, ...]:
    """Run the job in ``folder`` in a fresh process: wall, user and system seconds, the peak of resident memory (10^6
    bytes), and wall seconds over those of ``json.loads``."""
    command = [sys.executable, "-m", "core.cmd.start", "-f", str(JOB / "benchmarkingjob.yaml")]
    # Set by a job that ran in this process, IANVS_FRESH would have the journal ignored.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("IANVS_")}
    with (folder / "output.txt").open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench.replay: the job failed:\n{(folder / 'output.txt').read_text(encoding='utf-8')}")
    unit = 1 if sys.platform == "darwin" else 1024
    return wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * unit / 1e6, wall / _parsing(folder)


def _replayed(folder: Path) -> int:
    """How many rows the last run took from the journal; all, or the measurement means nothing."""
    (path,) = (folder / "workspace").rglob("environment.json")
    run: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["run"]
    if run["replayed"] != run["queries"]:
        raise SystemExit(f"bench.replay: only {run['replayed']} of {run['queries']} rows came from the journal")
    return int(run["replayed"])


def _parsing(folder: Path) -> float:
    """Seconds that ``json.loads`` takes over the lines of the job's answers."""
    (path,) = (folder / "workspace").rglob("answers.jsonl")
    lines = path.read_bytes().splitlines()
    started = time.perf_counter()
    for line in lines:
        json.loads(line)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
