"""Notes of a report on its figures: numbers of known answers, engines, and doubts."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.report.metrics.columns import ENERGY, MEANS, RATIOS, known
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.workspace.cases import Row

_SCORED = "Accuracy"
"""A report does not ask a judge and runs no programs: of the scores it has the leaderboard's figure alone."""


def known_parts(table: Table) -> dict[str, list[int]]:
    """Metric -> the numbers of queries that it knows and that were answered, where the first is smaller."""
    answered = table.query("failed") == 0.0
    found = {}
    for name in (*RATIOS, *MEANS):
        if name != _SCORED and 0 < (count := int((known(name, table) & answered).sum())) < answered.sum():
            found[name] = [count, int(answered.sum())]
    return found


def targets(rows: Mapping[int, Row]) -> dict[str, dict[str, int]]:
    """Side -> what computed its answers (see ``types.Trace``) and how many, as far as they say so."""
    found: dict[str, collections.Counter[str]] = {}
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            if target := turn["trace"].get("target"):
                found.setdefault(str(row[1].get("side")), collections.Counter())[str(target)] += 1
    return {side: dict(counts.most_common()) for side, counts in found.items()}


def doubts(environment: Mapping[str, Any]) -> list[str]:
    """Why times are doubtful, as the host noted it for the runs that made the answers."""
    load = environment.get("load")
    told = [one.get("doubt") for one in load if isinstance(one, Mapping)] if isinstance(load, list) else []
    return [f"times are doubtful: {doubt}" for doubt in dict.fromkeys(told) if isinstance(doubt, str)]


def energy(rows: Mapping[int, Row], environment: Mapping[str, str], empty: Sequence[str]) -> list[str]:
    """Why ``empty`` columns of a side's energy are. ``environment``: see ``figures.described``."""
    notes = []
    for side, asked in (("edge", [row[2] for row in rows.values()]), ("cloud", [row[3] for row in rows.values()])):
        if any(asked) and any(name in empty for name in (f"{side.capitalize()} {column}" for column in ENERGY)):
            told = [text for key, text in environment.items() if re.fullmatch(rf"modules\.{side}model.*\.energy", key)]
            other = "the answers are of several machines or counters, or environment.json is missing"
            reason = next((text for text in told if text.startswith("not measured")), other)
            notes.append(f"{side} energy is empty: {reason}")
    return notes


def told(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the document's test cases, one line for each kind. The kind is what stands before the colon: the
    figures after it may differ, and are then those of the first test case, which is named.
    """
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
        whose = f" (of the first, {name})" if any(text != note for _, text in found) else ""
        lines.append(f"{len(found)} of {len(cases)} test cases: {note}{whose}")
    return lines
