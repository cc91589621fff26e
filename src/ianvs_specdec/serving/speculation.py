"""What vLLM reports of speculative decoding, in its names. Only verification steps with a draft count."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter

from ianvs_specdec.common.types import Completion


def speculation(completion: Completion) -> dict[str, Any]:
    """``metrics.speculative_decoding`` of an answer; empty where nothing was drafted. ``acceptance_histogram``
    is how many steps accepted 0, 1, 2 ... tokens.
    """
    steps = [step for step in completion.trace.steps if step.drafted]
    if not steps:
        return {}
    longest = max(step.drafted for step in steps)
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    histogram = [0] * (longest + 1)
    for step in steps:
        histogram[step.accepted] += 1
    return {
        "mean_acceptance_length": 1 + accepted / len(steps),
        "draft_acceptance_rate": accepted / drafted,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": longest,
    }


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
