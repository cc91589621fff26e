"""The key ``rank`` of a job file: order of the leaderboards and columns of the selected one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.common.constant import FIXED_COLUMNS, MODULES, PARADIGMS
from core.common.document import describe, short
from core.common.errors import NEAR, NEARER, hint, nearest
from core.common.section import Section

DIRECTIONS = ("ascend", "descend")
SAVE_MODES = ("selected_and_all", "selected_only", "selected_and_all_and_picture")
_KNOWN: dict[str, Any] = {
    "sort_by": list, "visualization": dict, "selected_dataitem": dict, "selected_output_columns": list,
    "save_mode": SAVE_MODES,
}  # fmt: skip
_CHOICES = ("paradigms", "modules", "hyperparameters", "metrics")
_MODE = "selected_only"


@dataclass
class Columns:
    """The columns of a leaderboard. ``names()`` is their order."""

    metrics: list[str]
    modules: list[str]
    hyperparameters: list[str]

    def names(self) -> list[str]:
        return ["algorithm", *self.metrics, "paradigm", *self.modules, *self.hyperparameters, "time", "url"]

    def chosen(self, selected: Mapping[str, list[str]]) -> Columns:
        """The columns in ``selected``; all of a kind without any."""
        return Columns(**{kind: selected[kind] or names for kind, names in vars(self).items()})

    def extended(self, header: Sequence[str]) -> Columns:
        between = header.index("paradigm") if "paradigm" in header else 0
        found = Columns([*self.metrics], [*self.modules], [*self.hyperparameters])
        for i, name in enumerate(header):
            kind = found.metrics if i < between else found.modules if name in MODULES else found.hyperparameters
            if name not in (*FIXED_COLUMNS, *kind):
                kind.append(name)
        return found


@dataclass
class RankConfig:
    """``sort_by``: pairs of column and direction. ``selected``: names by kind, empty = all. ``output``: columns of the
    selected leaderboard, empty = all selected."""

    sort_by: list[tuple[str, str]] = field(default_factory=list)
    selected: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in _CHOICES})
    output: list[str] = field(default_factory=list)
    save_mode: str = SAVE_MODES[0]

    @classmethod
    def parse(cls, at: Section, value: Any, columns: Columns, unsure: Collection[str] = ()) -> RankConfig:
        """Read and check ``rank``. ``unsure``: kinds of names that are incomplete in ``columns`` because of errors in
        their file."""
        return _Reader(at, columns, frozenset(unsure)).read(value)


@dataclass
class _Reader:
    at: Section
    columns: Columns
    unsure: frozenset[str]
    config: RankConfig = field(default_factory=RankConfig)

    def read(self, value: Any) -> RankConfig:
        entries = self.at.mapping(value, _KNOWN)
        config = self.config
        config.save_mode = entries.get("save_mode", config.save_mode)
        if config.save_mode == SAVE_MODES[2]:
            self.at.add("this save_mode is for lifelong learning; use selected_and_all", "save_mode")
        if isinstance(value, dict) and not any(key == "sort_by" or nearest(key, ("sort_by",)) for key in value):
            self.at.warn("sort_by is missing: the rows are in the order of the runs")
        self._read_visualization(entries.get("visualization", {}))
        for i, item in enumerate(entries.get("sort_by", [])):
            self._read_sort(item, i)
        if "selected_dataitem" in entries:
            self._read_selected(entries["selected_dataitem"])
        self._read_output(entries.get("selected_output_columns", []))
        return config

    def _read_visualization(self, value: Any) -> None:
        known = {"mode": str, "method": ("print_table",)}
        at = self.at.at("visualization")
        mode = at.mapping(value, known).get("mode", _MODE)
        if mode != _MODE and nearest(mode, (_MODE,)):
            at.add(f"mode must be {_MODE}, got {describe(mode)}. Did you mean {_MODE!r}?", "mode")
        elif mode != _MODE:
            message = f"the mode {short(mode)} is unknown: the table is printed as with {_MODE}"
            at.warn(f"{message}; upstream Ianvs prints none", "mode")

    def _read_sort(self, item: Any, i: int) -> None:
        at, metrics = self.at.at("sort_by", i), self.columns.metrics
        if isinstance(item, str):  # as in the newest Ianvs
            item = {item: DIRECTIONS[0]}
        if not isinstance(item, dict) or len(item) != 1:
            at.add(f"an item of sort_by is written {{METRIC: ascend|descend}}, got {describe(item)}")
            return
        ((metric, direction),) = item.items()
        if direction not in DIRECTIONS:
            message = f"the direction of {short(metric)} must be ascend or descend, got {describe(direction)}."
            at.add(message + hint(direction, DIRECTIONS))
        if metric in self.columns.names():
            self.config.sort_by.append((metric, direction))
        elif nearest(metric, metrics, NEARER):
            message = f"sort_by names {short(metric)}, which is not a metric of the testenv file."
            at.add(message + hint(metric, metrics, "Metrics"))
        elif "metrics" not in self.unsure:
            at.warn(f"sort_by names {short(metric)}, which is not on the leaderboard: it is ignored")

    def _read_selected(self, value: Any) -> None:
        at = self.at.at("selected_dataitem")
        available = {"paradigms": list(PARADIGMS), **vars(self.columns)}
        entries = at.mapping(value, dict.fromkeys(_CHOICES, list))
        if missing := [kind for kind in _CHOICES if kind not in entries]:
            at.fails_upstream(f"selected_dataitem names no {' and no '.join(missing)}")
        for kind, names in entries.items():
            if not names:
                at.add(f'{kind} is empty; ["all"] selects all', kind)
            if names != ["all"]:
                for i, name in enumerate(names):
                    if name not in available[kind]:
                        self._unknown_choice(kind, name, available[kind], at.at(kind, i))
                self.config.selected[kind] = [name for name in names if isinstance(name, str)]

    def _unknown_choice(self, kind: str, name: Any, available: list[str], at: Section) -> None:
        message = f"selected_dataitem names {short(name)}, which is not among the job's {kind}."
        candidates = available
        if kind == "hyperparameters":  # suggest only hyperparameters of the same module
            module = str(name).partition("-")[0]
            candidates = [one for one in available if one.startswith(f"{module}-")] or available
        meant = nearest(name, candidates, NEARER if kind in ("metrics", "hyperparameters") else NEAR)
        if meant or not isinstance(name, str):
            at.add(message + hint(name, available, "There are"))
        elif kind not in self.unsure:
            at.warn(f"{message} Its column is empty")

    def _read_output(self, names: list[Any]) -> None:
        header = self.columns.chosen(self.config.selected).names()
        for i, name in enumerate(names):
            message = ""
            if name in names[:i]:
                message = f"selected_output_columns names {short(name)} twice"
            elif name in header:
                self.config.output.append(name)
            elif name == "rank":
                message = "rank is always the first column; leave it out of selected_output_columns"
            elif not self.unsure or not isinstance(name, str):
                message = (
                    f"selected_output_columns names {short(name)}, which is not a column of the selected leaderboard"
                )
                message += f".{hint(name, header, 'Columns')}"
            if message:
                self.at.add(message, "selected_output_columns", i)
