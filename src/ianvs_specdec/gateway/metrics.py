"""What the gateway counts: requests as its clients see them, the router's decisions, and both sides' own metrics, each
with the label ``side``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from ianvs_specdec.gateway.case import SIDES
from ianvs_specdec.serving.metrics import OUTCOMES, SECONDS, Metrics


class GatewayMetrics:
    """``sides``: what each side's engine counts in."""

    def __init__(self, sides: Mapping[str, Metrics]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, label: str, values: tuple[str, ...]) -> Counter:
            found = Counter(f"specdec_{name}", text, [label], registry=registry)
            for value in values:
                found.labels(value)
            return found

        self._requests = counter("gateway_requests", "Requests of clients by outcome.", "outcome", OUTCOMES)
        self._decisions = counter("router_decisions", "Requests that the router sent to a side.", "side", SIDES)
        self._cost = counter("cost", "Money spent on answers, by the models' prices.", "side", SIDES)
        self.fallbacks = Counter("specdec_fallbacks", "Requests that the edge answered in place of the cloud.",
                                 registry=registry)  # fmt: skip
        text = "Time of the router for one decision, without the models."
        self._router = Histogram("specdec_router_seconds", text, buckets=SECONDS, registry=registry)
        registry.register(_BothSides(sides))

    def outcome(self, name: str) -> None:
        self._requests.labels(name).inc()

    def decided(self, side: str, seconds: float | None) -> None:
        self._decisions.labels(side).inc()
        if seconds is not None:
            self._router.observe(seconds)

    def paid(self, side: str, cost: float | None) -> None:
        self._cost.labels(side).inc(cost or 0.0)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _BothSides:
    """The metrics of both sides. Those of one name are one, with the side as a label."""

    def __init__(self, sides: Mapping[str, Metrics]) -> None:
        self._sides = sides

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on the back ends."""
        return []

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for side, metrics in self._sides.items():
            for family in metrics.registry.collect():
                own = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                own.samples += [
                    Sample(one.name, {**one.labels, "side": side}, one.value, one.timestamp, one.exemplar)
                    for one in family.samples
                ]
        yield from found.values()
