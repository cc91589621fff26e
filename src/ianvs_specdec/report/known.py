"""Of how many answers a figure knows, and figures that claim more than was checked."""

from __future__ import annotations

from ianvs_specdec.plugin.workspace.cases import Case
from ianvs_specdec.report.metrics.columns import CLAIMS, MEANS, RATIOS, known
from ianvs_specdec.report.metrics.table import Table

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


def blank_partial_metrics(case: Case, figures: dict[str, float | None], table: Table) -> None:
    """Take back, with a note, what a leaderboard of an earlier version claims of answers that nobody has checked."""
    taken = []
    for name in sorted(CLAIMS if len(table) else ()):
        if figures.get(name) is not None and _unknown(name, table):
            figures[name] = figures[f"{name} CI95"] = None
            taken.append(name)
    if taken:
        case.notes.append(f"the leaderboard claims of all answers what is known of some only: {', '.join(taken)}")


def _unknown(name: str, table: Table) -> bool:
    """Whether an answered query is not known."""
    return bool((~known(name, table) & (table.query("failed") == 0.0)).any())
