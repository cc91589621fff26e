"""The key ``rank`` of a job file: how the leaderboards are sorted, and what the selected one shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.common.constant import ParadigmType, words
from core.common.document import Document, describe
from core.common.errors import Problems, hint
from core.storymanager.rank.columns import Columns

DIRECTIONS = ("ascend", "descend")
SAVE_MODES = ("selected_and_all", "selected_only", "selected_and_all_and_picture")
_KNOWN: dict[str, Any] = {"sort_by": list, "visualization": dict, "selected_dataitem": dict, "save_mode": SAVE_MODES}
_CHOICES = ("paradigms", "modules", "hyperparameters", "metrics")


@dataclass
class RankConfig:
    """``sort_by``: pairs of metric and direction. ``selected``: the chosen names by kind, an empty list for all."""

    sort_by: list[tuple[str, str]] = field(default_factory=list)
    selected: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in _CHOICES})
    save_mode: str = SAVE_MODES[0]

    @classmethod
    def parse(cls, doc: Document, value: Any, columns: Columns, problems: Problems) -> RankConfig:
        """Read ``rank``, checking every name in it against what the job has."""
        path, config = ("benchmarkingjob", "rank"), cls()
        entries = doc.mapping(value, path, _KNOWN, problems, required=("sort_by",))
        config.save_mode = entries.get("save_mode", config.save_mode)
        if config.save_mode == SAVE_MODES[2]:
            message = "the pictures of this save_mode belong to lifelong learning; use selected_and_all"
            problems.add(doc.place(*path, "save_mode"), message)
        if "visualization" in entries:
            known = {"mode": ("selected_only",), "method": ("print_table",)}
            doc.mapping(entries["visualization"], (*path, "visualization"), known, problems)
        for i, item in enumerate(entries.get("sort_by", [])):
            config._parse_sort(doc, (*path, "sort_by", i), item, columns.metrics, problems)
        if "selected_dataitem" in entries:
            available = {
                "paradigms": list(words(ParadigmType)),
                "modules": columns.modules,
                "hyperparameters": columns.hyperparameters,
                "metrics": columns.metrics,
            }
            config._parse_selected(doc, (*path, "selected_dataitem"), entries["selected_dataitem"], available, problems)
        return config

    def _parse_sort(
        self, doc: Document, path: tuple[Any, ...], item: Any, metrics: list[str], problems: Problems
    ) -> None:
        if not isinstance(item, dict) or len(item) != 1:
            problems.add(
                doc.place(*path), f"an item of sort_by is written {{METRIC: ascend|descend}}, got {describe(item)}"
            )
            return
        ((metric, direction),) = item.items()
        if metric not in metrics:
            message = (
                f"sort_by names {metric!r}, which is no metric of the testenv file.{hint(metric, metrics, 'Metrics')}"
            )
            problems.add(doc.place(*path), message)
        if direction not in DIRECTIONS:
            message = f"the direction of {metric!r} must be ascend or descend, got {describe(direction)}."
            problems.add(doc.place(*path), message + hint(direction, DIRECTIONS))
        self.sort_by.append((metric, direction))

    def _parse_selected(
        self, doc: Document, path: tuple[Any, ...], value: Any, available: dict[str, list[str]], problems: Problems
    ) -> None:
        entries = doc.mapping(value, path, dict.fromkeys(_CHOICES, list), problems)
        for kind, names in entries.items():
            if not names:
                problems.add(doc.place(*path, kind), f'{kind} is empty; ["all"] selects all')
            if names == ["all"]:
                continue
            for i, name in enumerate(names):
                if name not in available[kind]:
                    message = f"selected_dataitem names {name!r}, which is none of the job's {kind}."
                    problems.add(doc.place(*path, kind, i), message + hint(name, available[kind], "There are"))
            self.selected[kind] = names
