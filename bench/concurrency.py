"""``python -m bench.concurrency``: how much of an API's speed a job with ``concurrency`` brings home.

Copies the example, lets a stub server answer for the cloud model, and times the command ``ianvs`` in a process of its
own. An answer takes the stub a fixed time, so ``concurrency`` requests at a time make at most ``concurrency`` / time
answers a second. Prints what the server saw from the first request to the last answer, and the processor time that the
command took for one query. "bare" is as many requests with next to no client, just before: what the machine gives.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.replay import EXAMPLE, JOB, Cost, measure
from bench.stub import Counts, ask_bare, serving


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    ideal = options.concurrency / options.latency
    print(f"{options.rows} queries, {options.concurrency} at a time, {options.latency * 1000:.0f} ms each")
    print(f"{'':<10}{'queries/s':>11}{'of ideal':>10}{'at once':>9}{'user+system ms/query':>23}{'command s':>11}")
    print(f"{'ideal':<10}{ideal:>11.1f}{'100.0 %':>10}{options.concurrency:>9}")
    with serving(options.latency, options.pieces) as stub:
        for number in range(options.repeats):
            shutil.rmtree(options.work, ignore_errors=True)
            prepare(options.work, stub.url, options.rows, options.concurrency)
            stub.counts()
            ask_bare(stub.url, options.rows, options.concurrency)
            print(_line("bare", stub.counts(), Cost(0.0), ideal, options.rows), flush=True)
            cost = measure(options.work)
            print(_line(f"run {number + 1}", stub.counts(), cost, ideal, options.rows), flush=True)
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.concurrency", description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, metavar="N")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N")
    parser.add_argument("--latency", type=float, default=0.05, metavar="SECONDS", help="of one answer (0.05)")
    parser.add_argument("--pieces", type=int, default=4, metavar="N", help="in which an answer comes (4)")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    parser.add_argument("--work", type=Path, default=Path("runs") / "concurrency", metavar="DIR")
    options = parser.parse_args(argv)
    for name in ("rows", "concurrency", "pieces", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    options.work = options.work.resolve()
    return options


def _line(name: str, counts: Counts, cost: Cost, ideal: float, rows: int) -> str:
    if counts.answers != rows:
        raise SystemExit(f"bench.concurrency: the server gave {counts.answers} answers to {rows} queries")
    speed = rows / counts.seconds
    spent = "" if cost.user is None else f"{1000 * (cost.user + (cost.system or 0.0)) / rows:.2f}"
    command = f"{cost.wall:.2f}" if cost.wall else ""
    return f"{name:<10}{speed:>11.1f}{speed / ideal:>10.1%}{counts.most:>9}{spent:>23}{command:>11}"


def prepare(folder: Path, url: str, rows: int, concurrency: int) -> None:
    """Make ``folder`` a place to start ``ianvs`` in: the example with one test case, whose cloud model is an API."""
    import yaml

    def edit(path: Path, change: Any) -> None:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    for part in ("testenv", "testalgorithms"):
        shutil.copytree(EXAMPLE / part, folder / JOB / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE / "benchmarkingjob.yaml", folder / JOB)
    data = folder / "questions.jsonl"
    with data.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = {"question": f"Question {number}: which letter is it?", "answer": "A"}
            file.write(json.dumps(row) + "\n")

    def job(content: Any) -> None:
        content["benchmarkingjob"]["concurrency"] = concurrency
        algorithms = content["benchmarkingjob"]["test_object"]["algorithms"]
        algorithms[:] = [entry for entry in algorithms if entry["name"] == "cloud-only"]

    def algorithm(content: Any) -> None:
        for module in content["algorithm"]["modules"]:
            for hyperparameter in module.get("hyperparameters", []):
                if "backend" in hyperparameter:
                    hyperparameter["backend"]["values"] = ["api"]

    routing = folder / JOB / "testalgorithms" / "query-routing"
    edit(folder / JOB / "benchmarkingjob.yaml", job)
    edit(routing / "cloud_only.yaml", algorithm)
    edit(
        folder / JOB / "testenv" / "testenv.yaml",
        lambda content: content["testenv"]["dataset"].update(train_data=str(data), test_data=str(data)),
    )
    for side in ("edge", "cloud"):
        edit(
            routing / f"{side}_settings.yaml",
            lambda content: content.update(model="stub", api_base_url=url, api_key_env="STUB_KEY"),
        )


if __name__ == "__main__":
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    sys.exit(main())
