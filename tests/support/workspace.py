"""A workspace as written by Ianvs, with the project's responses and metrics, without a model."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.common.types import Completion, Step, Trace
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.response import Response
from ianvs_specdec.report.metrics import METRICS

COLUMNS = (
    *("Accuracy", "Accuracy CI95", "Edge Ratio", "Throughput", "Speedup", "Speedup CI95", "Mean Accepted Tokens"),
    *("Mean Accepted Tokens CI95", "Time to First Token", "Latency", "Cloud Cost", "Goodput", "Queries"),
)
PRICE = {"edge": None, "cloud": 2e-5}


def choice(number: int, gold: str = "B", text: str | None = None, group: str = "") -> dict[str, Any]:
    """A row of a data file: a question with four options."""
    text = text if text is not None else f"Question {number}?\nA. one\nB. two\nC. three\nD. four"
    question = {"turns": [text], "id": f"q{number}", "group": group or ("even", "odd")[number % 2], "scorer": "choice"}
    return {"question": question, "answer": gold}


def completion(text: str, *, drafting: bool = False, slow: float = 1.0, **trace: Any) -> Completion:
    """An answer of one token per character. Drafting steps accept two tokens and emit three."""
    ids = [ord(letter) for letter in text]
    size = 3 if drafting else 1
    steps = [
        Step(3 if drafting else 0, min(size, left) - 1, min(size, left), 4 if drafting else 1)
        for left in range(len(ids) - 1, 0, -size)
    ]
    chunks = [(0.01 * slow, 1)]
    for step in steps:
        chunks.append((chunks[-1][0] + 0.004 * slow, step.emitted))
    return Completion(text, ids, 20, len(ids), "stop", Trace(chunks, steps, **trace))


@dataclass
class Side:
    """One side's answer to a query, as of ``RoutedModel``."""

    name: str
    backend: str
    answers: Sequence[Completion]
    model: str = ""
    pace: float = 1.0
    """Seconds of the baseline, relative to the default."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def response(self, row: Mapping[str, Any], index: int, routing: Mapping[str, Any]) -> Response:
        query = query_of(row["question"], row["answer"], index)
        turns = [
            turn_of(
                answer,
                key=digest([self.name, self.backend, index, place, answer.text]),
                replayed=False,
                cached=False,
                hardware="0" * 16,
                baseline={
                    "key": "0" * 64,
                    "latency": self.pace * (0.02 + 0.004 * len(answer.token_ids)),
                    "completion_tokens": len(answer.token_ids),
                    "identical": True,
                },
            )
            for place, answer in enumerate(self.answers)
        ]
        response = response_of(
            query, list(self.answers), turns, side=self.name, model=self.model or self.name, backend=self.backend
        )
        response |= {"greedy": True, "lossy": False, "cost": PRICE[self.name], "routing": dict(routing), "slo": None}
        return Response({**response, **self.details})


@dataclass
class Bench:
    """A folder after a run of ``ianvs``. ``case()`` adds a finished test case and its row on the leaderboard."""

    root: Path
    rows: list[dict[str, Any]]
    job: str = "job"

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.data.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    @property
    def data(self) -> Path:
        return self.root / "questions.jsonl"

    @property
    def folder(self) -> Path:
        return self.root / "workspace" / self.job

    def case(
        self,
        router: str,
        results: Sequence[tuple[Side | None, Side | None]],
        *,
        scores: Sequence[float] | None = None,
        backend: str = "autoregressive",
        identifier: str | None = None,
        **hyperparameters: Any,
    ) -> Path:
        """``results``: per query the edge's and the cloud's answer; with both, the cloud's is the result."""
        algorithm, lines, table = router.lower(), [], []
        for index, (row, (edge, cloud)) in enumerate(zip(self.rows, results, strict=True)):
            score = scores[index] if scores else float(cloud is not None)
            routing = {"router": router, "score": score, "hard": cloud is not None, "seconds": 1e-5}
            sides = [side and side.response(row, index, routing) for side in (edge, cloud)]
            result = sides[1] or sides[0]
            table.append([cloud is not None, result, *sides])
            names = ("index", "is_hard", "result", "edge", "cloud")
            lines.append(json.dumps(dict(zip(names, (index, *table[-1]), strict=True))) + "\n")
        identifier = identifier or digest([router, backend, hyperparameters])[:16]
        folder = self.folder / algorithm / identifier
        folder.mkdir(parents=True)
        (folder / "answers.jsonl").write_text("".join(lines), encoding="utf-8")
        (folder / "environment.json").write_text(json.dumps({"processor": "a processor", "cores": 2}), encoding="utf-8")
        (folder / "config.yaml").write_text(yaml.safe_dump(self._config(router, backend, hyperparameters)))
        golds = [row["answer"] for row in self.rows]
        self._rank(router, algorithm, identifier, {name: METRICS[name](golds, table) for name in COLUMNS})
        return folder

    def _config(self, router: str, backend: str, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "algorithm": router.lower(),
            "dataset": "./questions.jsonl",
            "modules": [
                {"type": "edgemodel", "name": "E", "hyperparameters": {"model": "edge", "backend": backend}},
                {
                    "type": "cloudmodel",
                    "name": "C",
                    "hyperparameters": {"model": "cloud", "backend": backend, **hyperparameters},
                },
                {"type": "hard_example_mining", "name": router, "hyperparameters": {}},
            ],
        }

    def _rank(self, router: str, algorithm: str, identifier: str, values: Mapping[str, float]) -> None:
        path = self.folder / "rank" / "all_rank.csv"
        path.parent.mkdir(exist_ok=True)
        header = ["rank", "algorithm", *COLUMNS, "paradigm", "hard_example_mining", "time", "url"]
        old = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:] if path.exists() else []
        cells = ["" if math.isnan(value) else str(value) for value in values.values()]
        url = f"./workspace/{self.job}/{algorithm}/{identifier}"
        row = [str(len(old) + 1), algorithm, *cells, "jointinference", router, "2026-01-02 03:04:05", url]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *old, row])


def usual(bench: Bench, *, drafting: str = "EagleSpecDec") -> Bench:
    """Edge alone (right on even questions), cloud alone with and without drafting (right on all but the last), and a
    router that sends the odd ones to the cloud."""
    right, wrong = "The answer is B.", "The answer is C."

    def edge(index: int) -> Side:
        return Side("edge", "autoregressive", [completion(right if index % 2 == 0 else wrong, slow=0.5)])

    def cloud(index: int, backend: str = "autoregressive") -> Side:
        text = wrong if index == len(bench.rows) - 1 else right
        return Side("cloud", backend, [completion(text, drafting=backend != "autoregressive")])

    every = range(len(bench.rows))
    bench.case("EdgeOnly", [(edge(index), None) for index in every])
    bench.case("CloudOnly", [(None, cloud(index)) for index in every])
    bench.case("CloudOnly", [(None, cloud(index, drafting)) for index in every], backend=drafting)
    bench.case(
        "OddRouter",
        [(None, cloud(index)) if index % 2 else (edge(index), None) for index in every],
        scores=[0.9 if index % 2 else 0.1 for index in every],
    )
    return bench
