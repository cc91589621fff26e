"""The test environment file: data, metrics, and how joint inference divides the work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from core.common.constant import FIXED_COLUMNS, MINING_MODES, SYSTEM_METRICS
from core.common.errors import Problems
from core.common.plugins import resolve_alias
from core.common.section import Section
from core.testenvmanager.dataset import Dataset
from sedna.common.class_factory import ClassType

_KNOWN: dict[str, Any] = {
    "dataset": dict,
    "metrics": list,
    "hard_example_mining_mode": MINING_MODES,
    "on_malformed_row": ("stop", "skip"),
    # Read by Ianvs for other paradigms: accepted here, without effect.
    "model_eval": dict,
    "incremental_rounds": int,
    "round": int,
    "client_number": int,
    "use_gpu": bool,
}


@dataclass
class Metric:
    """``name``: its alias and its column; ``url``: the plugin file; ``at``: its place in the testenv file."""

    name: str
    url: str
    at: Section
    function: Any = None

    def compute(self, y_true: Any, y_pred: list[Any]) -> float | int | str | None:
        """One plain value; None where the metric says NaN, that is, undefined. TypeError for anything else."""
        value = self.function(y_true, y_pred)
        if hasattr(value, "item") and getattr(value, "size", 0) == 1:  # numpy's and torch's scalars
            value = value.item()
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if isinstance(value, (int, float, str)):
            return value
        raise TypeError(f"a metric must return one number, {self.name!r} returned {type(value).__name__}")


@dataclass
class TestEnv:
    """``mining_mode``: one of the four modes; ``on_malformed_row``: whether a bad row stops the job or is left out."""

    __test__ = False  # not a test class, whatever a test runner thinks of the name

    at: Section
    dataset: Dataset
    metrics: list[Metric] = field(default_factory=list)
    mining_mode: str = MINING_MODES[0]
    on_malformed_row: str = "stop"

    @classmethod
    def parse(cls, at: Section) -> TestEnv:
        entries = at.mapping(at.root(_KNOWN), _KNOWN, required=("dataset", "metrics"))
        env = cls(at, Dataset(at))
        if "dataset" in entries:
            env.dataset = Dataset.parse(at.at("dataset"), entries["dataset"])
        env.mining_mode = entries.get("hard_example_mining_mode", env.mining_mode)
        if "on_malformed_row" in entries:
            env.on_malformed_row = entries["on_malformed_row"]
            at.differs_upstream("upstream Ianvs ignores on_malformed_row", "on_malformed_row")
        if entries.get("incremental_rounds", 2) < 2:
            at.add("incremental_rounds must be 2 or more", "incremental_rounds")
        if entries.get("metrics") == []:
            at.add("metrics is empty: nothing would be on the leaderboard", "metrics")
        for i, value in enumerate(entries.get("metrics", [])):
            env._parse_metric(at.at("metrics", i), value)
        return env

    def _parse_metric(self, at: Section, value: Any) -> None:
        faults = len(at.problems.errors)
        entries = at.mapping(value, {"name": str, "url": str}, required=("name",))
        name, url = entries.get("name"), entries.get("url", "")
        earlier = next((metric for metric in self.metrics if metric.name == name), None)
        if name in FIXED_COLUMNS:
            at.add(f"{name!r} is a column of every leaderboard already", "name")
        elif earlier is not None and earlier.url == url:
            at.warn(f"the metric {name!r} stands twice: it is computed once")
        elif earlier is not None:
            at.add(f"the metric {name!r} stands twice, with another file: {earlier.url} and {url}")
        elif name in SYSTEM_METRICS and not url:
            at.warn(f"{name!r} belongs to another paradigm than joint inference: it is left out")
        elif name is not None and (url or len(at.problems.errors) == faults):
            self.metrics.append(Metric(name, url, at))

    def resolve(self) -> None:
        """Import the metric files and find the functions."""
        for metric in sorted(self.metrics, key=lambda metric: not metric.url):
            if not metric.url:
                self._resolve_elsewhere(metric)
                continue
            metric.function = resolve_alias(ClassType.GENERAL, metric.name, metric.url, metric.at)
            if metric.function is not None and not callable(metric.function):
                metric.at.add(f"{metric.name!r} in {metric.url} is not a function")

    def _resolve_elsewhere(self, metric: Metric) -> None:
        """A metric without a file: one that another metric's file defines too."""
        tried = Section(metric.at.doc, Problems(), metric.at.path)
        for url in dict.fromkeys(other.url for other in self.metrics if other.url):
            function = resolve_alias(ClassType.GENERAL, metric.name, url, tried)
            if callable(function):
                metric.function = function
                metric.at.warn(f"the key 'url' is missing: {metric.name!r} is taken from {url}")
                metric.at.fails_upstream(f"the metric {metric.name!r} has no url")
                return
        metric.at.add(f"the key 'url' is missing: in which file is the metric {metric.name!r}?")
