"""Notes of a report on its figures: numbers of known answers, engines, and doubts."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.records.response import answer_of
from ianvs_specdec.report.metrics.columns import MEANS, RATIOS, known
from ianvs_specdec.report.metrics.rows import energies
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.workspace.cases import Row

_SCORED = "Accuracy"
"""A report does not ask a judge and runs no programs: of the scores it has the leaderboard's figure alone."""


def known_parts(table: Table) -> dict[str, list[int]]:
    """Metric -> the number of queries that it knows and the number that were answered, where it knows some of them
    only.
    """
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


def energy(rows: Mapping[int, Row], modules: Any, empty: Sequence[str]) -> list[str]:
    """What measured the energy of a side, with its idle power; why the columns in ``empty`` are. ``modules``: what they
    told of themselves."""
    notes = []
    for side, place in (("edge", 2), ("cloud", 3)):
        found = [one for row in rows.values() for one in energies(answer_of(row[1], row[2]) if place == 2 else row[3])]
        known = [one for one in found if one]
        if known:
            idle = [one["idle"] for one in known if one.get("idle") is not None]
            power = f", idle power {min(idle):.3g} to {max(idle):.3g} W" if idle else ""
            notes.append(f"{side} energy: {known[0].get('source')}{power}")
        elif found and any(name.startswith(side.capitalize()) for name in empty):
            told = modules.get(f"{side}model") if isinstance(modules, Mapping) else None
            first = told[0] if isinstance(told, list) and told else told
            reason = first.get("energy") if isinstance(first, Mapping) else None
            notes.append(f"{side} energy is empty: {reason or 'no environment.json tells why'}")
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
