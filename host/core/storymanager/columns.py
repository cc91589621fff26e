"""The columns of a leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.common.constant import FIXED_COLUMNS, MODULES

Row = dict[str, str]
"""The cells of a test case, by the names of their columns."""


@dataclass
class Columns:
    """The names of a leaderboard's columns; ``names()`` is their order."""

    metrics: list[str]
    modules: list[str]
    hyperparameters: list[str]

    def names(self) -> list[str]:
        return ["algorithm", *self.metrics, "paradigm", *self.modules, *self.hyperparameters, "time", "url"]

    def chosen(self, selected: Mapping[str, list[str]]) -> Columns:
        """Those that ``selected`` names, by kind; all of a kind of which it names none."""
        return Columns(
            selected["metrics"] or self.metrics,
            selected["modules"] or self.modules,
            selected["hyperparameters"] or self.hyperparameters,
        )

    def extended(self, header: Sequence[str]) -> Columns:
        """With the further columns that an earlier run's file has."""
        between = header.index("paradigm") if "paradigm" in header else 0
        types = MODULES
        old = Columns([], [], [])
        for i, name in enumerate(header):
            if name in FIXED_COLUMNS:
                continue
            if i < between:
                old.metrics.append(name)
            elif name in types:
                old.modules.append(name)
            else:
                old.hyperparameters.append(name)
        return Columns(
            list(dict.fromkeys([*self.metrics, *old.metrics])),
            list(dict.fromkeys([*self.modules, *old.modules])),
            list(dict.fromkeys([*self.hyperparameters, *old.hyperparameters])),
        )
