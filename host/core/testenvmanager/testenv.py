"""The test environment file: data, metrics, and the mode of joint inference."""

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
    # Keys of other paradigms, without effect here.
    "model_eval": dict,
    "incremental_rounds": int,
    "round": int,
    "client_number": int,
    "use_gpu": bool,
}


@dataclass
class Metric:
    """``name``: alias and column; ``url``: the plugin file; ``at``: the place in the testenv file."""

    name: str
    url: str
    at: Section
    function: Any = None

    def compute(self, y_true: Any, y_pred: list[Any]) -> float | int | str | None:
        """The value, or None for NaN (undefined). Raises TypeError for anything but a number or text."""
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
    """``mining_mode``: one of MINING_MODES; ``on_malformed_row``: "stop" or "skip"."""

    __test__ = False  # pytest must not collect it

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
            at.add("metrics is empty", "metrics")
        for i, value in enumerate(entries.get("metrics", [])):
            env._parse_metric(at.at("metrics", i), value)
        return env

    def _parse_metric(self, at: Section, value: Any) -> None:
        errors = len(at.problems.errors)
        entries = at.mapping(value, {"name": str, "url": str}, required=("name",))
        name, url = entries.get("name"), entries.get("url", "")
        earlier = next((metric for metric in self.metrics if metric.name == name), None)
        if name in FIXED_COLUMNS:
            at.add(f"{name!r} is already a column of every leaderboard", "name")
        elif earlier is not None and earlier.url == url:
            at.warn(f"the metric {name!r} is a duplicate: it is computed once")
        elif earlier is not None:
            at.add(f"the metric {name!r} is a duplicate with another file: {earlier.url} and {url}")
        elif name in SYSTEM_METRICS and not url:
            at.warn(f"{name!r} belongs to another paradigm: it is left out")
        elif name is not None and (url or len(at.problems.errors) == errors):
            self.metrics.append(Metric(name, url, at))

    def resolve(self) -> None:
        """Import the metric files and find the functions."""
        for metric in sorted(self.metrics, key=lambda metric: not metric.url):
            if not metric.url:
                self._resolve_without_url(metric)
                continue
            metric.function = resolve_alias(ClassType.GENERAL, metric.name, metric.url, metric.at)
            if metric.function is not None and not callable(metric.function):
                metric.at.add(f"{metric.name!r} in {metric.url} is not a function")

    def _resolve_without_url(self, metric: Metric) -> None:
        """Look for the metric in the files of the other metrics."""
        scratch = Section(metric.at.doc, Problems(), metric.at.path)
        for url in dict.fromkeys(other.url for other in self.metrics if other.url):
            function = resolve_alias(ClassType.GENERAL, metric.name, url, scratch)
            if callable(function):
                metric.function = function
                metric.at.warn(f"the key 'url' is missing: {metric.name!r} is taken from {url}")
                metric.at.fails_upstream(f"the metric {metric.name!r} has no url")
                return
        metric.at.add(f"the key 'url' is missing, the file of the metric {metric.name!r}")
