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
        return Columns(**{kind: selected[kind] or names for kind, names in vars(self).items()})

    def extended(self, header: Sequence[str]) -> Columns:
        between = header.index("paradigm") if "paradigm" in header else 0
        found = Columns([*self.metrics], [*self.modules], [*self.hyperparameters])
        for i, name in enumerate(header):
            kind = found.metrics if i < between else found.modules if name in MODULES else found.hyperparameters
            if name not in (*FIXED_COLUMNS, *kind):
                kind.append(name)
        return found
