"""The key ``rank`` of a job file: how the leaderboards are sorted, and what the selected one shows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from core.common.constant import PARADIGMS
from core.common.document import Document, describe, short
from core.common.errors import NEAR, NEARER, Problems, hint, nearest
from core.storymanager.columns import Columns

DIRECTIONS = ("ascend", "descend")
SAVE_MODES = ("selected_and_all", "selected_only", "selected_and_all_and_picture")
_KNOWN: dict[str, Any] = {
    "sort_by": list, "visualization": dict, "selected_dataitem": dict, "selected_output_columns": list,
    "save_mode": SAVE_MODES,
}  # fmt: skip
_CHOICES = ("paradigms", "modules", "hyperparameters", "metrics")
_MODE = "selected_only"


@dataclass
class RankConfig:
    """``sort_by``: pairs of column and direction. ``selected``: the chosen names by kind, an empty list for all;
    ``output``: the columns of the selected leaderboard beside ``rank``, in their order, empty for all that were chosen.
    """

    sort_by: list[tuple[str, str]] = field(default_factory=list)
    selected: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in _CHOICES})
    output: list[str] = field(default_factory=list)
    save_mode: str = SAVE_MODES[0]

    @classmethod
    def parse(
        cls, doc: Document, value: Any, columns: Columns, problems: Problems, unsure: Collection[str] = ()
    ) -> RankConfig:
        """Read ``rank``, checking every name in it against what the job has. ``unsure``: the kinds of names of which
        ``columns`` lacks some, because the file that has them is faulty; such a name is not complained about here.
        """
        return _Reader(doc, columns, problems, frozenset(unsure)).read(value)


@dataclass
class _Reader:
    doc: Document
    columns: Columns
    problems: Problems
    unsure: frozenset[str]
    config: RankConfig = field(default_factory=RankConfig)
    path: tuple[Any, ...] = ("benchmarkingjob", "rank")

    def read(self, value: Any) -> RankConfig:
        entries = self.doc.mapping(value, self.path, _KNOWN, self.problems)
        config = self.config
        config.save_mode = entries.get("save_mode", config.save_mode)
        if config.save_mode == SAVE_MODES[2]:
            message = "the pictures of this save_mode belong to lifelong learning; use selected_and_all"
            self.problems.add(self._place("save_mode"), message)
        if isinstance(value, dict) and not any(key == "sort_by" or nearest(key, ("sort_by",)) for key in value):
            self.problems.warn(self._place(), "sort_by is missing: the rows stay in the order in which they were made")
        self._read_visualization(entries.get("visualization", {}))
        for i, item in enumerate(entries.get("sort_by", [])):
            self._read_sort(item, i)
        if "selected_dataitem" in entries:
            self._read_selected(entries["selected_dataitem"])
        self._read_output(entries.get("selected_output_columns", []))
        return config

    def _place(self, *keys: Any) -> str:
        return self.doc.place(*self.path, *keys)

    def _read_visualization(self, value: Any) -> None:
        known = {"mode": str, "method": ("print_table",)}
        entries = self.doc.mapping(value, (*self.path, "visualization"), known, self.problems)
        mode, place = entries.get("mode", _MODE), self._place("visualization", "mode")
        if mode != _MODE and nearest(mode, (_MODE,)):
            self.problems.add(place, f"mode must be {_MODE}, got {describe(mode)}. Did you mean {_MODE!r}?")
        elif mode != _MODE:
            message = f"the mode {short(mode)} is not known: the table is printed as with {_MODE}"
            self.problems.warn(place, f"{message}; upstream Ianvs prints none")

    def _read_sort(self, item: Any, i: int) -> None:
        if isinstance(item, str):  # as the newest Ianvs reads it
            item = {item: DIRECTIONS[0]}
        if not isinstance(item, dict) or len(item) != 1:
            message = f"an item of sort_by is written {{METRIC: ascend|descend}}, got {describe(item)}"
            self.problems.add(self._place("sort_by", i), message)
            return
        ((metric, direction),) = item.items()
        place, metrics = self._place("sort_by", i), self.columns.metrics
        if direction not in DIRECTIONS:
            message = f"the direction of {short(metric)} must be ascend or descend, got {describe(direction)}."
            self.problems.add(place, message + hint(direction, DIRECTIONS))
        if metric in self.columns.names():
            self.config.sort_by.append((metric, direction))
        elif nearest(metric, metrics, NEARER):
            message = f"sort_by names {short(metric)}, which is no metric of the testenv file."
            self.problems.add(place, message + hint(metric, metrics, "Metrics"))
        elif "metrics" not in self.unsure:
            message = f"sort_by names {short(metric)}, which the leaderboard does not have: rows are not sorted by it"
            self.problems.warn(place, message)

    def _read_selected(self, value: Any) -> None:
        path = (*self.path, "selected_dataitem")
        available = {"paradigms": list(PARADIGMS), **vars(self.columns)}
        entries = self.doc.mapping(value, path, dict.fromkeys(_CHOICES, list), self.problems)
        if missing := [kind for kind in _CHOICES if kind not in entries]:
            message = f"selected_dataitem names no {' and no '.join(missing)}"
            self.problems.fails_upstream(self.doc.place(*path), message)
        for kind, names in entries.items():
            if not names:
                self.problems.add(self.doc.place(*path, kind), f'{kind} is empty; ["all"] selects all')
            if names != ["all"]:
                for i, name in enumerate(names):
                    if name not in available[kind]:
                        self._unknown_choice(kind, name, available[kind], self.doc.place(*path, kind, i))
                self.config.selected[kind] = [name for name in names if isinstance(name, str)]

    def _unknown_choice(self, kind: str, name: Any, available: list[str], place: str) -> None:
        message = f"selected_dataitem names {short(name)}, which is none of the job's {kind}."
        candidates = available
        if kind == "hyperparameters":  # of another module, a hyperparameter of the same name is not what was meant
            module = str(name).partition("-")[0]
            candidates = [one for one in available if one.startswith(f"{module}-")] or available
        meant = nearest(name, candidates, NEARER if kind in ("metrics", "hyperparameters") else NEAR)
        if meant or not isinstance(name, str):
            self.problems.add(place, message + hint(name, available, "There are"))
        elif kind not in self.unsure:
            self.problems.warn(place, f"{message} Its column stays empty")

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
                message = f"selected_output_columns names {short(name)}, which is no column of the selected leaderboard"
                message += f".{hint(name, header, 'Columns')}"
            if message:
                self.problems.add(self._place("selected_output_columns", i), message)
