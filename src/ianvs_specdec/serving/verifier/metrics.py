"""What the verifier counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from ianvs_specdec.common.types import Occupancy
from ianvs_specdec.net.split.split_pb2 import Code
from ianvs_specdec.serving.metrics import SECONDS, EngineCollector
from ianvs_specdec.serving.verifier.session import Emitted


class Metrics:
    """See ``registry``. Rounds are drafts with their verdicts; their times are the verifier's, without the way."""

    def __init__(self, model: str, occupancy: Callable[[], Occupancy | None]) -> None:
        self.registry = registry = CollectorRegistry()
        Info("specdec_model", "What is served.", registry=registry).info({"model": model, "backend": "verifier"})

        def counter(name: str, text: str) -> Counter:
            return Counter(f"specdec_verifier_{name}", text, registry=registry)

        self._opened = counter("sessions_opened", "Sessions opened.")
        self._prompt = counter("prompt_tokens", "Tokens read.")
        self._rounds = counter("rounds", "Drafts that were verified.")
        self._split = counter("split_tokens", "Tokens put out by rounds.")
        self._streamed = counter("streamed_tokens", "Tokens put out without drafts of an edge.")
        self._refused = Counter("specdec_verifier_refused", "Streams refused, by reason.", ["code"], registry=registry)
        for code in Code.keys():  # noqa: SIM118 - an enumeration of the format, no mapping
            self._refused.labels(code.lower())
        text = "From a draft's arrival to its verdict."
        self._seconds = Histogram("specdec_verifier_round_seconds", text, buckets=SECONDS, registry=registry)
        registry.register(EngineCollector(occupancy))

    def watch(self, sessions: Callable[[], float]) -> None:
        """Show how many sessions there are at the moment of asking."""
        Gauge("specdec_verifier_sessions", "Open sessions.", registry=self.registry).set_function(sessions)

    def opened(self, prompt_tokens: int) -> None:
        self._opened.inc()
        self._prompt.inc(prompt_tokens)

    def refused(self, code: Code) -> None:
        self._refused.labels(Code.Name(code).lower()).inc()

    def emitted(self, emitted: Emitted) -> None:
        if emitted.node is None:
            self._streamed.inc(len(emitted.tokens))
        else:
            self._rounds.inc()
            self._split.inc(len(emitted.tokens))
            self._seconds.observe(emitted.seconds)
