"""A workspace as one JSON document: the data of the page, ``--json`` and ``--csv``."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ianvs_specdec import __version__
from ianvs_specdec.backends import resolve
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.report.curves import curves, outcomes
from ianvs_specdec.report.details import Details
from ianvs_specdec.report.figures import (
    QUANTILES,
    categories,
    column,
    described,
    distributions,
    figures,
    groups,
    positions,
    safe,
)
from ianvs_specdec.report.metrics.columns import all_columns
from ianvs_specdec.report.metrics.intervals import all_intervals
from ianvs_specdec.report.metrics.router_quality import why_empty
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.report.notes import energy, grouped_notes, known_parts, targets, timing_doubts
from ianvs_specdec.report.split import grids
from ianvs_specdec.report.sweeps import sweeps
from ianvs_specdec.workspace.cases import Case, Dataset, Row, Workspace, read_workspace
from ianvs_specdec.workspace.journal_reader import JournalReader
from ianvs_specdec.workspace.judgments import JudgedQuery, Judgments, mean_rating, read_judgments
from ianvs_specdec.workspace.sides import Pair, PairedAnswers, scores_of

VERSION = 1
SHOWN = (
    *("Accuracy", "Edge Ratio", "Throughput", "Speedup", "Mean Accepted Tokens", "Acceptance Rate"),
    *("Time to First Token", "Internal Token Latency", "Latency", "Cloud Cost", "Lossless"),
)
"""Columns shown by default if the job selects none."""

Document = dict[str, Any]
Scores = dict[int, float]
"""A router's score for each query."""


def collect(folder: Path, most: int = 200, load: Sequence[Path] = ()) -> Document:
    """The document of the workspace ``folder``, with details of up to ``most`` queries per test case and the sweeps of
    ``specdec load`` in its jobs and in the folders ``load``. ``entries`` refer to ``queries`` and ``answers`` by index.
    Undefined values are None or absent. Raises UserError if there is nothing to report on."""
    workspace = read_workspace(folder)
    details, sides, scores = Details(workspace), PairedAnswers(), []
    cases = []
    for case in workspace.cases:
        rows = case.answers()
        dataset = _dataset(workspace, case, rows)
        cases.append(_case(workspace, case, dataset, rows, details, sides, most))
        scores.append(scores_of(rows)[1])
    _add_names(cases)
    names = dict.fromkeys(name for job in workspace.headers for name in _metrics(workspace, job))
    known = (*all_columns(), *all_intervals())
    names |= dict.fromkeys(name for name in known if any(case["figures"].get(name) is not None for case in cases))
    selected = dict.fromkeys(name for header in workspace.selected.values() for name in _between(header))
    return {
        "version": VERSION,
        "generator": f"ianvs-specdec {__version__}",
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "jobs": list(workspace.headers),
        "columns": [column(name) for name in names],
        "shown": [name for name in selected or SHOWN if name in names],
        "quantiles": list(QUANTILES),
        "cases": cases,
        "queries": details.queries,
        "answers": details.answers,
        "routing": _routing(workspace, sides, [case["router"] for case in cases], scores),
        "load": sweeps(workspace.jobs, load, workspace.notes),
        "split": grids(workspace.cases, [case["figures"] for case in cases]),
        "notes": workspace.notes,
        "told": {job: grouped_notes([case for case in cases if case["job"] == job]) for job in workspace.headers},
    }


def _between(header: Sequence[str]) -> list[str]:
    """The metrics in a leaderboard's header: the columns between algorithm and paradigm."""
    end = header.index("paradigm") if "paradigm" in header else len(header)
    return [name for name in header[:end] if name not in ("rank", "algorithm")]


def _metrics(workspace: Workspace, job: str) -> list[str]:
    return _between(workspace.headers.get(job, []))


def _case(
    workspace: Workspace,
    case: Case,
    dataset: Dataset | None,
    rows: dict[int, Row],
    details: Details,
    sides: PairedAnswers,
    most: int,
) -> Document:
    results = [safe(row) for row in rows.values()]
    golds = [dataset.golds[index] if dataset else None for index in rows]
    if dataset is None:
        for row in results:
            row[1]["scorer"] = "none"
    table = Table.of(golds, results)
    judge, judged = "", dict[int, Judgments]()
    if dataset is not None:
        judge, judged = _judged(workspace, case, dataset, rows)
        places = {index: place for place, index in enumerate(rows)}
        table = table.with_scores({places[index]: mean_rating(ratings) for index, ratings in judged.items()})
        sides.add(case, dataset, rows, dict(zip(rows, table.query("score").tolist(), strict=True)))
    entries = list(details.entries(case, dataset, rows, table, judged, most)) if rows else []
    run = case.environment.get("run") or {}
    found = figures(case, _metrics(workspace, case.job), table)
    if "Router APGR" in found and found["Router APGR"] is None and rows:
        case.notes.append(f"Router APGR is empty: {why_empty(golds, results, table)}")
    case.notes += timing_doubts(case.environment)
    empty = [name for name in _metrics(workspace, case.job) if found.get(name) is None]
    case.notes += energy(rows, described(case.environment), empty)
    return {
        "job": case.job,
        "algorithm": case.algorithm,
        "id": case.id,
        "rank": int(case.rank["rank"]) if case.rank.get("rank", "").isdigit() else None,
        "time": case.rank.get("time") or run.get("finished") or "",
        "router": case.module("hard_example_mining").get("name")
        or case.rank.get("hard_example_mining", case.algorithm),
        **{side: _side(case, rows, side) for side in ("edge", "cloud")},
        "figures": found,
        "known": known_parts(table),
        "positions": positions(rows),
        "distributions": distributions(table) if rows else {},
        "groups": groups(table) if rows else {},
        "categories": categories(table) if rows else {},
        "alone": _alone(rows),
        "judge": judge,
        "failures": _failures(rows, workspace.journal(case.job)),
        "memory": _memory(rows),
        "targets": targets(rows),
        "load": case.environment.get("load") or [],
        "configuration": _configuration(case),
        "environment": described(case.environment),
        "repeats": case.repeats,
        "answered": len(rows),
        "entries": entries,
        "notes": case.notes,
    }


def _judged(
    workspace: Workspace, case: Case, dataset: Dataset, rows: Mapping[int, Row]
) -> tuple[str, dict[int, Judgments]]:
    """The judge and its judgments; adds a note if the judge's prompts cannot be read."""
    requests = {}
    for index, (_, result, _, _) in rows.items():
        query, answers = dataset.queries[index], [turn["completion"] for turn in result.get("turns", ())]
        if result.get("scorer") == "judge" and len(answers) == len(query.turns) and not result.get("error"):
            requests[index] = JudgedQuery(query, answers, dataset.golds[index])
    try:
        return read_judgments(workspace, case, requests)
    except (UserError, OSError) as error:
        case.notes.append(f"single judgments are not shown: {error}")
        return "", {}


def _dataset(workspace: Workspace, case: Case, rows: Mapping[int, Row]) -> Dataset | None:
    """The data file of a test case; None, with a note, if it is missing or has other rows."""
    url = case.config.get("dataset")
    dataset = workspace.dataset(str(url)) if rows and url else None
    if dataset is None or all(
        index < len(dataset.golds) and _same(dataset.queries[index], row) for index, row in rows.items()
    ):
        return dataset
    note = "the data file has changed since the run: questions and references are not shown"
    case.notes += [note] if note not in case.notes else []
    return None


def _same(query: Any, row: Row) -> bool:
    """Whether the data file's query is the one that was answered."""
    answered = (row[1].get("query_id"), row[1].get("group"))
    return answered in ((query.id, query.group), (None, None)) or bool(row[1].get("error"))


def _side(case: Case, rows: Mapping[int, Row], side: str) -> Document | None:
    """Model and back end of a side; None if it has no model or gave no answer."""
    for row in rows.values():
        response = row[2] if side == "edge" else row[3]
        if response is not None and response.get("backend"):
            return {"model": str(response.get("model", "")), "backend": resolve(str(response["backend"]))}
    own = case.module(f"{side}model").get("hyperparameters") or {}
    if rows or not own.get("model"):
        return None
    return {"model": str(own["model"]), "backend": resolve(str(own.get("backend", "")))}


def _alone(rows: Mapping[int, Row]) -> str | None:
    """The side that answered all queries, if any. Over two models speedup and tau are not comparable: one is weighted
    by time, the other by steps."""
    edge, cloud = (any(row[place] is not None for row in rows.values()) for place in (2, 3))
    return None if edge == cloud else "edge" if edge else "cloud"


def _failures(rows: Mapping[int, Row], kept: JournalReader) -> Document:
    """Number of queries without an answer, and of failed attempts by kind, including those that a retry repaired."""
    kinds: collections.Counter[str] = collections.Counter()
    failed = 0
    for row in rows.values():
        result = row[1]
        attempts = [failure for turn in result.get("turns", ()) for failure in turn["trace"].get("failures") or ()]
        if result.get("error"):
            failed += 1
            attempts += kept.failures(str(result.get("side")), str(result["error"])) or ()
        kinds.update(str(what) for _, what in attempts)
    return {"queries": failed, "attempts": dict(kinds.most_common())} if failed or kinds else {}


def _memory(rows: Mapping[int, Row]) -> dict[str, int]:
    """Peak memory of each side's model in bytes."""
    peak: dict[str, int] = {}
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            if (memory := turn["trace"].get("memory")) is not None:
                side = str(row[1].get("side"))
                peak[side] = max(peak.get(side, 0), int(memory))
    return peak


def _configuration(case: Case) -> dict[str, str]:
    found = described({key: value for key, value in case.config.items() if key != "modules"})
    for module in case.config.get("modules") or ():
        if isinstance(module, Mapping):
            kind = str(module.get("type"))
            found[kind] = str(module.get("name"))
            found |= described({kind: module.get("hyperparameters") or {}})
    return found


def _add_names(cases: Sequence[Document]) -> None:
    """Give each test case a name that is unique in its job: router, back ends, and differing hyperparameters."""
    for case in cases:
        backends = list(dict.fromkeys(side["backend"] for side in (case["edge"], case["cloud"]) if side))
        case["name"] = " · ".join([case["router"], " + ".join(backends)] if backends else [case["router"]])
    namesakes: dict[tuple[str, str], list[Document]] = {}
    for case in cases:
        namesakes.setdefault((case["job"], case["name"]), []).append(case)
    for same in namesakes.values():
        keys = _distinguishing(same)
        for number, case in enumerate(same, 1):
            if len(same) > 1:
                known = {key: case["configuration"].get(key) for key in keys}
                differing = [f"{key.rpartition('.')[2]}={value}" for key, value in known.items() if value is not None]
                case["name"] += f" ({', '.join(differing) or number})"


def _distinguishing(same: Sequence[Document]) -> list[str]:
    """Configuration keys that distinguish these test cases, without redundant ones."""
    keys: list[str] = []
    values: list[tuple[str | None, ...]] = [()] * len(same)
    for key in dict.fromkeys(key for case in same for key in case["configuration"]):
        finer = [(*before, case["configuration"].get(key)) for before, case in zip(values, same, strict=True)]
        if len(set(finer)) > len(set(values)):
            keys, values = [*keys, key], finer
    return keys


def _routing(
    workspace: Workspace, sides: PairedAnswers, routers: Sequence[str], scores: Sequence[Scores]
) -> list[Document]:
    """The cost-quality curves of each pair of models on each data file, with the numbers of its test cases."""
    members: dict[Pair, list[int]] = {}
    for number, case in enumerate(workspace.cases):
        pair = sides.pair(case)
        if pair is not None:
            members.setdefault(pair, []).append(number)
    found = []
    for pair, numbers in members.items():
        cases = [workspace.cases[number] for number in numbers]
        lines = None
        if (dataset := workspace.dataset(pair[0]) if pair[0] else None) is not None:
            sides.complete(cases, dataset, workspace.journal(cases[0].job))
            both = outcomes(sides.both(pair), dataset)
            lines = curves(both, ((number, routers[number], scores[number]) for number in numbers))
        found.append({"data": pair[0], "cases": numbers, **(lines or {})})
    return found


def to_csv(document: Document) -> str:
    """The leaderboard with all columns, one line per test case."""
    sides = ("edge", "cloud")
    names = [item["name"] for item in document["columns"]]
    rows: list[list[Any]] = [["job", "rank", "algorithm", "id", "name", "router", *sides, "judge", *names, "time"]]
    for case in document["cases"]:
        backends = [case[side]["backend"] if case[side] else "" for side in sides]
        values = ["" if (value := case["figures"].get(name)) is None else repr(value) for name in names]
        rank = "" if case["rank"] is None else case["rank"]
        own = [case[key] for key in ("algorithm", "id", "name", "router")]
        rows.append([case["job"], rank, *own, *backends, case["judge"], *values, case["time"]])
    return csv_text(rows)
