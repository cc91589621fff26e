"""Rows of a test case whose traces are small enough to check by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ianvs_specdec.common.types import Completion, Query, Step, Trace
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.report.metrics import METRICS

DETAILS = {"model": "m", "backend": "specdec", "greedy": True, "slo": None, "routing": None}


def completion(chunks: list[tuple[float, int]], steps: list[Step] | None = None, text: str = "B") -> Completion:
    tokens = sum(count for _, count in chunks)
    return Completion(text, list(range(tokens)), 10, tokens, "stop", Trace(chunks, steps or []))


def response(
    *completions: Completion,
    side: str = "edge",
    scorer: str = "choice",
    group: str = "",
    question: str = "q",
    **details: Any,
) -> Response:
    turn = {"key": "k", "replayed": False, "cached": False, "hardware": "h1", "baseline": None}
    turn |= {name: details.pop(name) for name in turn.keys() & details.keys()}
    baselines = turn.pop("baseline")
    baselines = baselines if isinstance(baselines, list) else [baselines] * len(completions)
    turns = [turn_of(c, **turn, baseline=b) for c, b in zip(completions, baselines, strict=True)]
    query = Query(tuple(question for _ in completions), scorer=scorer, group=group)
    return response_of(query, completions, turns, **{**DETAILS, "side": side, "cost": None, **details})


def edge_row(*completions: Completion, **details: Any) -> list[Any]:
    answer = response(*completions, **details)
    return [False, copy.deepcopy(answer), answer, None]


def cloud_row(*completions: Completion, **details: Any) -> list[Any]:
    answer = response(*completions, side="cloud", **details)
    return [True, copy.deepcopy(answer), None, answer]


def value(name: str, rows: list[list[Any]], gold: list[Any] | None = None) -> float:
    return METRICS[name](np.array(gold or ["B"] * len(rows), dtype=object), rows)


def baseline(latency: float | None, tokens: int, identical: bool = True, **more: Any) -> dict[str, Any]:
    return {"key": "b", "latency": latency, "completion_tokens": tokens, "identical": identical, **more}
