"""Columns of split decoding: what an edge and a verifier did for their answers (see ``types.SplitTrace``).

Undefined for every other answer. docs/split.md derives the break-even round trip.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.net.split.breakeven import break_even_round_trip
from ianvs_specdec.report.metrics.table import Table

Column = NDArray[np.float64]


def busy_sums(table: Table) -> tuple[Column, Column]:
    """The verifier's seconds, and tokens."""
    return table.by_query(table.turn("prefill") + table.turn("work")), table.query("tokens")


def break_even(table: Table) -> float:
    """The round trip (seconds) at which drafting on the edge takes as long as the autoregressive stream, by the formula
    of ``net.split.breakeven`` with sums over the answers."""
    tokens = table.turn("tokens") - table.turn("first_tokens")
    names = ("work", "drafting", "hidden", "waits", "rounds", "in_flight")
    columns = [tokens * table.turn("base_token"), *(table.turn(name) for name in names)]
    known = ~np.isnan(sum(columns))
    # Rounds sent ahead, each for as much of a way as is its own.
    columns.append((columns[5] - columns[4]) / columns[6])
    stream, work, drafting, hidden, waits, rounds, _, shares = (float(column[known].sum()) for column in columns)
    if not rounds:
        return np.nan
    service = work / rounds
    hidden = max(hidden, service * (rounds - waits))
    return break_even_round_trip(stream, fresh=waits, shares=shares, drafting=drafting, service=service, hidden=hidden)


RATIOS: dict[str, Callable[[Table], tuple[Column, Column]]] = {
    "Rounds per Answer": lambda table: (table.query("rounds"), table.by_query(np.ones_like(table.turn("rounds")))),
    "Draft-Ahead Hit Rate": lambda table: (table.query("hits"), table.query("ahead")),
    "Cloud Busy Time": busy_sums,
    "Recovery Time": lambda table: (table.query("lost"), table.query("breaks")),
}
"""Per name: two columns of queries, whose sums are divided (see ``columns.RATIOS``)."""
