"""One turn and one query as rows of numbers, from which ``table`` builds its columns. NaN = undefined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.scorers import EXTRACTED

Response = Mapping[str, Any]
Row = dict[str, float]

NAN = float("nan")

TEXT, TOKEN_IDS, HIDDEN_STATES = 1.0, 2.0, 3.0
SENT = {"SplitSpecDec": TOKEN_IDS, "SlicedSpecDec": HIDDEN_STATES}
"""Form in which a prompt leaves the edge, by the cloud model's back end; text for all others. Answers, stop strings and
the task's name are text in any case."""

SPLIT = (
    *("rounds", "in_flight", "waits", "drafting", "hidden"),
    *("ahead", "hits", "breaks", "lost", "prefill", "work"),
    "base_token",
)
"""Columns of turns: those of a split trace, and seconds per token of the autoregressive stream after its first
chunk."""

ENERGY = ("joules", "idle", "seconds")
"""Columns of queries (``edge_joules``, ...), summed over all requests to a side; see ``types.Energy``."""


def turn_row(query: int, turn: Response, result: Response, waited: float, drafting: float) -> Row:
    """``waited``: seconds before the request was sent; ``drafting``: how many of them the edge drafted."""
    trace, baseline = turn["trace"], turn.get("baseline") or {}
    chunks, steps = trace["chunks"], trace["steps"]
    tokens, passes = sum(chunk[1] for chunk in chunks), len(steps)
    drafted, accepted, emitted, verified = (sum(step[part] for step in steps) for part in range(4))
    if not steps and trace.get("drafts"):
        drafted, accepted = trace["drafts"]
        if passes := trace.get("passes") or 0:
            emitted, verified = tokens - 1, drafted + passes
    identical = baseline.get("identical") if result.get("greedy") else None
    if result.get("lossy"):
        identical = False
    return {
        "query": query,
        "tokens": tokens,
        "first_tokens": chunks[0][1] if chunks else 0,
        "ttft": waited + chunks[0][0] if chunks else NAN,
        "ttft_answer": waited + number(_answer_start(trace)),
        "thinking": trace.get("thinking", 0),
        "latency": waited + chunks[-1][0] if chunks else NAN,
        "steps": passes,
        "drafted": drafted,
        "accepted": accepted,
        "emitted": emitted,
        "verified": verified,
        "bytes_up": number(trace.get("bytes_up")),
        "bytes_down": number(trace.get("bytes_down")),
        "memory": number(trace.get("memory")),
        "draft_time": drafting + number(trace.get("drafting")),
        "retries": len(trace.get("failures", ())),
        "issued": number(trace.get("issued")),
        "base_latency": number(baseline.get("latency")),
        "base_issued": number(baseline.get("issued")),
        "base_tokens": number(baseline.get("completion_tokens")),
        "identical": number(identical),
        "near_tie": NAN if identical is None else number(baseline.get("near_tie", False)),
        **_split(trace.get("split"), baseline),
    }


def _answer_start(trace: Response) -> float | None:
    """Time of the first token after the reasoning; None if there is none."""
    if trace.get("thinking"):
        return trace.get("answered")
    return trace["chunks"][0][0] if trace["chunks"] else None


def query_row(hard: Any, result: Response, edge: Response | None, cloud: Response | None) -> Row:
    """Flags are 0 or 1. ``slo_*``: inf without this limit, NaN without any; ``unreported``: requests whose server does
    not report truncation; ``stopped``, ``saved``: NaN without early decisions; ``sent``: 0 or one of ``SENT``."""
    slo, sides = result.get("slo"), {"edge": edge, "cloud": cloud}
    return {
        "hard": float(bool(hard)),
        "replayed": float(bool(result.get("replayed"))),
        "failed": float(bool(result.get("error"))),
        "routing": number((result.get("routing") or {}).get("seconds")),
        **{f"slo_{name}": slo.get(name, np.inf) if slo else NAN for name in ("ttft", "itl", "latency")},
        "sent": 0.0 if cloud is None else SENT.get(str(cloud.get("backend")), TEXT),
        "cloud_cost": _cost(cloud, result),
        "edge_cost": _cost(edge, result),
        "edge_prompt": _tokens(edge, "prompt_tokens"),
        "edge_completion": _tokens(edge, "completion_tokens"),
        "cloud_prompt": _tokens(cloud, "prompt_tokens"),
        "cloud_completion": _tokens(cloud, "completion_tokens"),
        **_cut_prompts([answer for answer in (edge, cloud) if answer is not None] or [result]),
        "unparsed": _unparsed(result),
        "chance": 100.0 / result["options"] if result.get("options") else NAN,
        **{f"{side}_{name}": total for side, part in sides.items() for name, total in _energy(part).items()},
        **_stopped(result, edge),
    }


def _cost(response: Response | None, result: Response) -> float:
    # A side that failed and was replaced by the other generated no tokens to pay for.
    if response is None or (result.get("turns") and not response.get("turns") and not response.get("prefill")):
        return 0.0
    return number(response.get("cost"))


def _energy(response: Response | None) -> Row:
    return {name: sum(number(one.get(name)) for one in _energies(response)) for name in ENERGY}


def energy_sources(response: Response | None) -> set[str]:
    return {one["source"] for one in _energies(response) if one.get("source")}


def _energies(response: Response | None) -> list[Response]:
    """The energy of each request to a side; empty mappings if unknown."""
    parts = [] if response is None else [response, *response.get("samples", ())]
    found = [turn["trace"].get("energy") for part in parts for turn in part.get("turns", ())]
    if response and response.get("prefill"):
        found.append(response["prefill"].get("energy"))
    return [one or {} for one in found]


def _tokens(response: Response | None, kind: str) -> float:
    return 0.0 if response is None else float(response["usage"][kind])


def number(value: float | None) -> float:
    return NAN if value is None else float(value)


def _split(trace: Response | None, baseline: Response) -> Row:
    """``SPLIT`` of one turn."""
    if trace is None:
        return dict.fromkeys(SPLIT, NAN)
    return {name: number(baseline.get("token") if name == "base_token" else trace.get(name)) for name in SPLIT}


def _cut_prompts(answers: list[Response]) -> dict[str, float]:
    parts = [part for answer in answers for part in (answer, *answer.get("samples", ()))]
    cut = [turn.get("truncated", 0) for part in parts for turn in part.get("turns", ())]
    return {"truncated": float(sum(bool(tokens) for tokens in cut)), "unreported": float(cut.count(None))}


def _unparsed(result: Response) -> float:
    read = result.get("scorer") in EXTRACTED and "prediction" in result and not result.get("error")
    return float(result["prediction"] is None) if read else NAN


def _stopped(result: Response, edge: Response | None) -> dict[str, float]:
    if (result.get("routing") or {}).get("decide_after") is None:
        return {"stopped": NAN, "saved": NAN}
    stop = None if edge is None else edge.get("stopped")
    return {"stopped": 0.0, "saved": 0.0} if stop is None else {"stopped": 1.0, "saved": number(stop["saved"])}
