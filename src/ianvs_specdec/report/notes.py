"""Notes of a report: incomplete metrics, engines, doubtful timings, missing energy."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.report.metrics.columns import ENERGY, MEANS, RATIOS, known
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.workspace.cases import Row

_SCORED = "Accuracy"
"""Taken from the leaderboard: a report calls no judge and runs no programs."""


def known_parts(table: Table) -> dict[str, list[int]]:
    """Metric -> numbers of queries with a value and of answered queries, if the first is smaller."""
    answered = table.query("failed") == 0.0
    found = {}
    for name in (*RATIOS, *MEANS):
        if name != _SCORED and 0 < (count := int((known(name, table) & answered).sum())) < answered.sum():
            found[name] = [count, int(answered.sum())]
    return found


def targets(rows: Mapping[int, Row]) -> dict[str, dict[str, int]]:
    """Side -> what computed its answers (``types.Trace.target``) -> number of answers."""
    found: dict[str, collections.Counter[str]] = {}
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            if target := turn["trace"].get("target"):
                found.setdefault(str(row[1].get("side")), collections.Counter())[str(target)] += 1
    return {side: dict(counts.most_common()) for side, counts in found.items()}


def timing_doubts(environment: Mapping[str, Any]) -> list[str]:
    """Doubts about the timings that the host recorded with the runs."""
    load = environment.get("load")
    found = [one.get("doubt") for one in load if isinstance(one, Mapping)] if isinstance(load, list) else []
    return [f"times are doubtful: {doubt}" for doubt in dict.fromkeys(found) if isinstance(doubt, str)]


def energy(rows: Mapping[int, Row], environment: Mapping[str, str], empty: Sequence[str]) -> list[str]:
    """Why energy columns among ``empty`` are empty. ``environment``: see ``figures.described``."""
    notes = []
    for side, place in (("edge", 2), ("cloud", 3)):
        used = any(row[place] for row in rows.values())
        if used and any(f"{side.capitalize()} {column}" in empty for column in ENERGY):
            key = re.compile(rf"modules\.{side}model.*\.energy")
            status = [text for name, text in environment.items() if key.fullmatch(name)]
            other = "the answers are of several machines or counters, or environment.json is missing"
            reason = next((text for text in status if text.startswith("not measured")), other)
            notes.append(f"{side} energy is empty: {reason}")
    return notes


def grouped_notes(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The test cases' notes, one line per kind (the part before the colon). If the rest differs, the line has that of
    the first test case, and names it."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for case in cases:
        for note in case["notes"]:
            kinds.setdefault(note.partition(": ")[0], []).append((case["name"], note))
    lines = []
    for found in kinds.values():
        name, note = found[0]
        if len(found) == 1:
            lines.append(f"{name}: {note}")
            continue
        source = f" (of the first, {name})" if any(text != note for _, text in found) else ""
        lines.append(f"{len(found)} of {len(cases)} test cases: {note}{source}")
    return lines
