"""``python -m bench.replay --data mmlu_test.jsonl.gz``: what it takes ``ianvs`` to replay a large job.

Copies the example, converts the questions, fills the journal with answers that no model had to give, and times the
command, each time in a fresh process, until the leaderboard is written. Prints wall and processor seconds, the peak of
resident memory, and how many times what ``json.loads`` takes over the job's answers.jsonl; a second line has one row of
100 KB more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cloud-edge-speculative-decoding"
JOB = Path("examples") / EXAMPLE.name
LARGE = 100_000


@dataclass
class Cost:
    """Seconds and MB (10^6 bytes) of one command; None where the system does not tell."""

    wall: float
    user: float | None = None
    system: float | None = None
    memory: float | None = None


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    table = [f"{'':<24}{'rows':>8}{'wall s':>9}{'user s':>9}{'system s':>10}{'peak MB':>9}{'x json':>9}"]
    for name, large in (("answered from journal", False), ("and one row of 100 KB", True)):
        folder = options.work / ("large" if large else "plain")
        shutil.rmtree(folder, ignore_errors=True)
        # In a process of its own: what this one holds would be counted as memory of the commands it starts.
        maker = multiprocessing.get_context("spawn").Process(
            target=prepare, args=(folder, options.data, options.rows, large)
        )
        maker.start()
        maker.join()
        if maker.exitcode:
            return 1
        costs, parsed = [], []
        for _ in range(options.repeats):
            costs.append(measure(folder))
            parsed.append(_parsing(folder))
        times = statistics.median(cost.wall / seconds for cost, seconds in zip(costs, parsed, strict=True))
        table.append(f"{name:<24}{_replayed(folder):>8}" + "".join(_cells(costs)) + f"{times:>9.1f}")
    print("\n".join(table))
    print(f"medians of {options.repeats}; {options.work} holds both jobs")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.replay", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="MMLU questions, as data prepare mmlu reads them"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="take N questions, spread evenly over the file (all)")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    parser.add_argument("--work", type=Path, default=Path("runs") / "replay", metavar="DIR", help="(runs/replay)")
    options = parser.parse_args(argv)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    options.data, options.work = options.data.resolve(), options.work.resolve()
    return options


def prepare(folder: Path, data: Path, limit: int | None, large: bool) -> None:
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
    if large:
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"question": "long " * (LARGE // 5), "answer": "A"}) + "\n")
    model = folder / "model"
    model.mkdir()
    # Looked at to tell models apart, never loaded.
    (model / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    save_file({"wte.weight": np.zeros((1, 1), np.float32)}, model / "model.safetensors")
    settings = _configure(folder, rows, model)

    os.chdir(folder)
    os.environ["RESULT_SAVED_URL"] = str(folder / "workspace" / EXAMPLE.name / "edge-only")
    BACKENDS["autoregressive"] = "bench.instant:InstantLLM"
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
    import yaml

    def edit(path: Path, change: Any) -> Any:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return content

    def only_edge(content: Any) -> None:
        algorithms = content["benchmarkingjob"]["test_object"]["algorithms"]
        algorithms[:] = [entry for entry in algorithms if entry["name"] == "edge-only"]

    def one_backend(content: Any) -> None:
        (module,) = (entry for entry in content["algorithm"]["modules"] if entry["type"] == "edgemodel")
        for hyperparameter in module["hyperparameters"]:
            if "backend" in hyperparameter:
                hyperparameter["backend"]["values"] = ["autoregressive"]

    routing = folder / JOB / "testalgorithms" / "query-routing"
    edit(folder / JOB / "benchmarkingjob.yaml", only_edge)
    edit(routing / "edge_only.yaml", one_backend)
    edit(
        folder / JOB / "testenv" / "testenv.yaml",
        lambda content: content["testenv"]["dataset"].update(train_data=str(rows), test_data=str(rows)),
    )
    edit(routing / "cloud_settings.yaml", lambda content: content.update(model=str(model)))
    settings: dict[str, Any] = edit(routing / "edge_settings.yaml", lambda content: content.update(model=str(model)))
    return settings


def measure(folder: Path) -> Cost:
    """Run the job in ``folder`` in a fresh process."""
    command = [sys.executable, "-m", "core.cmd.start", "-f", str(JOB / "benchmarkingjob.yaml")]
    # Set by a job that ran in this process, IANVS_FRESH would have the journal ignored.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("IANVS_")}
    with (folder / "output.txt").open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment)
        usage = None
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        else:
            process.wait()
        wall = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"bench.replay: the job failed:\n{(folder / 'output.txt').read_text(encoding='utf-8')}")
    if usage is None:
        return Cost(wall)
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * unit / 1e6)


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


def _cells(costs: list[Cost]) -> list[str]:
    cells = []
    for name, width, digits in (("wall", 9, 2), ("user", 9, 2), ("system", 10, 2), ("memory", 9, 0)):
        values = [value for cost in costs if (value := getattr(cost, name)) is not None]
        cells.append(f"{statistics.median(values):>{width}.{digits}f}" if values else " " * width)
    return cells


if __name__ == "__main__":
    sys.exit(main())
