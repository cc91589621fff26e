"""The test environment file: data, metrics, and how joint inference divides the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.common.constant import FIXED_COLUMNS, MINING_MODES, SYSTEM_METRICS
from core.common.document import Document
from core.common.errors import Problems
from core.common.plugins import resolve_alias
from core.testenvmanager.dataset import Dataset
from core.testenvmanager.metric import Metric
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
class TestEnv:
    """``mining_mode``: one of the four modes; ``on_malformed_row``: whether a bad row stops the job or is left out."""

    __test__ = False  # not a test class, whatever a test runner thinks of the name

    doc: Document
    dataset: Dataset
    metrics: list[Metric] = field(default_factory=list)
    mining_mode: str = MINING_MODES[0]
    on_malformed_row: str = "stop"

    @classmethod
    def parse(cls, doc: Document, problems: Problems) -> TestEnv:
        path = ("testenv",)
        entries = doc.mapping(
            doc.root("testenv", _KNOWN, problems), path, _KNOWN, problems, required=("dataset", "metrics")
        )
        env = cls(doc, Dataset(doc))
        if "dataset" in entries:
            env.dataset = Dataset.parse(doc, (*path, "dataset"), entries["dataset"], problems)
        env.mining_mode = entries.get("hard_example_mining_mode", env.mining_mode)
        if "on_malformed_row" in entries:
            problems.upstream.add(doc.place(*path, "on_malformed_row"), "upstream Ianvs ignores on_malformed_row")
        env.on_malformed_row = entries.get("on_malformed_row", env.on_malformed_row)
        if entries.get("incremental_rounds", 2) < 2:
            problems.add(doc.place(*path, "incremental_rounds"), "incremental_rounds must be 2 or more")
        if "metrics" in entries and not entries["metrics"]:
            problems.add(doc.place(*path, "metrics"), "metrics is empty: nothing would be on the leaderboard")
        for i, value in enumerate(entries.get("metrics", [])):
            env._parse_metric((*path, "metrics", i), value, problems)
        return env

    def _parse_metric(self, path: tuple[Any, ...], value: Any, problems: Problems) -> None:
        faults = len(problems.errors)
        entries = self.doc.mapping(value, path, {"name": str, "url": str}, problems, required=("name",))
        name, url, place = entries.get("name"), entries.get("url", ""), self.doc.place(*path)
        earlier = next((metric for metric in self.metrics if metric.name == name), None)
        if name in FIXED_COLUMNS:
            problems.add(self.doc.place(*path, "name"), f"{name!r} is a column of every leaderboard already")
        elif earlier is not None and earlier.url == url:
            problems.warn(place, f"the metric {name!r} stands twice: it is computed once")
        elif earlier is not None:
            problems.add(place, f"the metric {name!r} stands twice, with another file: {earlier.url} and {url}")
        elif name in SYSTEM_METRICS and not url:
            problems.warn(place, f"{name!r} belongs to another paradigm than joint inference: it is left out")
        elif name is not None and (url or len(problems.errors) == faults):
            self.metrics.append(Metric(name, url, path))

    def resolve(self, problems: Problems) -> None:
        for metric in sorted(self.metrics, key=lambda metric: not metric.url):
            if not metric.url:
                self._resolve_elsewhere(metric, problems)
                continue
            function = resolve_alias(ClassType.GENERAL, metric.name, metric.url, self.doc, metric.path, problems)
            if function is not None and not callable(function):
                problems.add(self.doc.place(*metric.path), f"{metric.name!r} in {metric.url} is not a function")
            metric.function = function

    def _resolve_elsewhere(self, metric: Metric, problems: Problems) -> None:
        """A metric without a file: one that another metric's file defines too."""
        place = self.doc.place(*metric.path)
        for url in dict.fromkeys(other.url for other in self.metrics if other.url):
            tried = Problems()
            function = resolve_alias(ClassType.GENERAL, metric.name, url, self.doc, metric.path, tried)
            if callable(function):
                metric.function = function
                message = f"the key 'url' is missing: {metric.name!r} is taken from {url}"
                problems.warn(place, message)
                problems.fails_upstream(place, f"the metric {metric.name!r} has no url")
                return
        problems.add(place, f"the key 'url' is missing: in which file is the metric {metric.name!r}?")
