"""Metrics of the gateway: requests, decisions, cost, and the metrics of both sides with the label ``side``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

from ianvs_specdec.serving.metrics import SECONDS, Counts, Metrics


class GatewayMetrics(Counts):
    """``sides``: the metrics of each side's engine."""

    def __init__(self, sides: Mapping[str, Metrics]) -> None:
        super().__init__("gateway_requests")

        def counter(name: str, text: str) -> Counter:
            found = Counter(f"specdec_{name}", text, ["side"], registry=self.registry)
            for side in sides:
                found.labels(side)
            return found

        self._decisions = counter("router_decisions", "Requests that the router sent to a side.")
        self.cost = counter("cost", "Cost of answers, by the prices in the models' settings.")
        text = "Requests that the edge answered instead of the cloud."
        self.fallbacks = Counter("specdec_fallbacks", text, registry=self.registry)
        text = "Time of the router for one decision, without the models."
        self._router = Histogram("specdec_router_seconds", text, buckets=SECONDS, registry=self.registry)
        self._share = Gauge("specdec_cloud_share", "Share of decisions for the cloud.", registry=self.registry)
        self._decided = dict.fromkeys(sides, 0)
        self.sides = sides
        self.registry.register(self)

    def decided(self, side: str, seconds: float | None) -> None:
        self._decisions.labels(side).inc()
        self._decided[side] += 1
        self._share.set(self._decided["cloud"] / sum(self._decided.values()))
        if seconds is not None:
            self._router.observe(seconds)

    def describe(self) -> list[Metric]:
        """Empty: the metrics depend on the back ends."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of the sides, merged by name."""
        found: dict[str, Metric] = {}
        for side, metrics in self.sides.items():
            for family in metrics.registry.collect():
                own = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                own.samples += [one._replace(labels={**one.labels, "side": side}) for one in family.samples]
        yield from found.values()
