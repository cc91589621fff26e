"""What the server counts, in the text format of Prometheus.

Each choice of a request counts as one, by outcome. Tokens are counted by the engine, those of unfinished answers
included; times and steps are those of completed answers, and ``specdec_engine_...`` of all steps so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily

from ianvs_specdec.common.types import Completion, Occupancy
from ianvs_specdec.serving.protocol import speculation

OUTCOMES = ("completed", "rejected", "queue_full", "deadline", "disconnected", "shutdown", "failed")
OUTCOMES_HELP = (
    "Requests by outcome: completed, rejected (a fault of the request, 4xx), queue_full, deadline, disconnected (the "
    "client left), shutdown, failed."
)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
TOKEN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Counts:
    """Requests by outcome, under a ``name``."""

    def __init__(self, name: str = "requests") -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(f"specdec_{name}", OUTCOMES_HELP, ["outcome"], registry=self.registry)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)

    def outcome(self, name: str) -> None:
        self._requests.labels(name).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class SpeculationCounters:
    """``vllm:spec_decode_...``, of completed answers, from which ``vllm bench serve`` reads the acceptance."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._model = model

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"vllm:spec_decode_num_{name}", text, ["model_name", *labels], registry=registry)

        self._drafts = counter("drafts", "Drafts that were verified.").labels(model)
        self._drafted = counter("draft_tokens", "Tokens drafted.").labels(model)
        self._accepted = counter("accepted_tokens", "Drafted tokens that were accepted.").labels(model)
        self._places = counter("accepted_tokens_per_pos", "The same by their place in the draft.", "position")

    def completed(self, completion: Completion) -> None:
        if counts := speculation(completion):
            self._drafts.inc(counts["num_spec_steps"])
            self._drafted.inc(counts["num_draft_tokens"])
            self._accepted.inc(counts["num_accepted_draft_tokens"])
            histogram = counts["acceptance_histogram"]
            for place in range(len(histogram) - 1):
                self._places.labels(self._model, place).inc(sum(histogram[place + 1 :]))


class Metrics(Counts):
    def __init__(self, model: str, backend: str) -> None:
        super().__init__()
        registry = self.registry
        Info("specdec_model", "What is served.", registry=registry).info({"model": model, "backend": backend})

        def counter(name: str, text: str) -> Counter:
            return Counter(f"specdec_{name}", text, registry=registry)

        self._prompt = counter("prompt_tokens", "Tokens read.")
        self._completion = counter("completion_tokens", "Tokens put out.")
        self._truncated = counter("truncated_prompts", "Prompts that were cut to fit into the model's window.")
        self._steps = counter("steps", "Verification steps.")
        self._drafted = counter("drafted_tokens", "Tokens drafted.")
        self._accepted = counter("accepted_tokens", "Drafted tokens that were accepted.")
        self._emitted = counter("emitted_tokens", "Tokens put out by verification steps.")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"specdec_{name}_seconds", text, buckets=buckets, registry=registry)

        self._speculation = SpeculationCounters(model, registry)
        self._queued = histogram("queue", "From a request's arrival until it is worked on.", SECONDS)
        self._ttft = histogram("time_to_first_token", "From a request's arrival to its first token.", SECONDS)
        self._latency = histogram("request", "From a request's arrival to its last token.", SECONDS)
        self._itl = histogram("inter_token", "Time of each token after the first chunk.", TOKEN_SECONDS)

    def watch(
        self,
        queue_length: Callable[[], float],
        in_flight: Callable[[], float],
        memory: int | None,
        occupancy: Callable[[], Occupancy | None],
    ) -> None:
        """Show what is read at the moment of asking, and the bytes that the model holds, as far as it is known."""

        def gauge(name: str, text: str, read: Callable[[], float]) -> None:
            Gauge(f"specdec_{name}", text, registry=self.registry).set_function(read)

        gauge("queue_length", "Requests that wait.", queue_length)
        gauge("in_flight", "Requests that are worked on.", in_flight)
        if occupancy() is not None:
            gauge("sequences", "Sequences that share the engine's steps.", lambda: _known(occupancy).sequences)
            gauge("waiting_for_room", "Requests in flight that wait for room there.", lambda: _known(occupancy).waiting)
            self.registry.register(EngineCollector(occupancy))
            text = "What is set aside for the sequences."
            gauge("sequence_memory_bytes", text, lambda: _known(occupancy).memory)
        if memory is not None:
            text = "What weights and caches of the model hold."
            Gauge("specdec_model_memory_bytes", text, registry=self.registry).set(memory)

    def watch_emulation(self, emulation: Callable[[], Mapping[str, Any] | None]) -> None:
        """Show which machine's speed is emulated, if one is: all times are those of that machine, times the scale."""
        if (emulated := emulation()) is None:
            return
        about = {name: str(emulated[name]) for name in ("machine", "model", "method", "scale")}
        text = "Whose speed is emulated: all times are made, not taken."
        Info("specdec_emulated", text, registry=self.registry).info(about)

        def gauge(name: str, text: str) -> None:
            shown = Gauge(f"specdec_emulated_{name}", text, registry=self.registry)
            shown.set_function(lambda: (emulation() or {}).get(name, 0))

        gauge("steps", "Steps whose time was emulated.")
        gauge("overruns", "Those for which this machine needed longer than the emulated one, times the scale.")

    def unfinished(self, tokens: int) -> None:
        """Tokens of an answer that was cancelled or failed."""
        self._completion.inc(tokens)

    def completed(self, completion: Completion, waited: float) -> None:
        """An answer, ``waited`` seconds after whose request's arrival the engine was asked."""
        self.outcome("completed")
        self._prompt.inc(completion.prompt_tokens)
        self._truncated.inc(bool(completion.truncated))
        self._completion.inc(completion.completion_tokens)
        trace = completion.trace
        self._steps.inc(len(trace.steps))
        self._drafted.inc(sum(step.drafted for step in trace.steps))
        self._accepted.inc(sum(step.accepted for step in trace.steps))
        self._emitted.inc(sum(step.emitted for step in trace.steps))
        self._speculation.completed(completion)
        self._queued.observe(waited)
        if trace.ttft is not None and trace.latency is not None:
            self._ttft.observe(waited + trace.ttft)
            self._latency.observe(waited + trace.latency)
        for (before, _), (seconds, tokens) in zip(trace.chunks, trace.chunks[1:], strict=False):
            for _ in range(tokens):
                self._itl.observe((seconds - before) / tokens)


class EngineCollector:
    """The engine's own counts, all of one moment: of all its steps, those of requests under way included."""

    def __init__(self, occupancy: Callable[[], Occupancy | None]) -> None:
        self._occupancy = occupancy

    def collect(self) -> Iterator[CounterMetricFamily]:
        done = _known(self._occupancy).done
        for name, text, value in (
            ("steps", "Steps of the target.", done.steps),
            ("verifications", "Verification steps, one for each request that took part in a step.", done.verifications),
            ("drafted_tokens", "Tokens drafted.", done.drafted),
            ("accepted_tokens", "Drafted tokens that were accepted.", done.accepted),
            ("emitted_tokens", "Tokens put out by verification steps.", done.emitted),
            ("verified_tokens", "Tokens computed by verification steps.", done.verified),
        ):
            yield CounterMetricFamily(f"specdec_engine_{name}", f"{text} Since the engine began.", value)


def _known(occupancy: Callable[[], Occupancy | None]) -> Occupancy:
    """None once the model is closed."""
    return occupancy() or Occupancy(0, 0, 0)
