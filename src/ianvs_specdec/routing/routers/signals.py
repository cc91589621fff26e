"""Uncertainty signals of the edge's answer, from 0 (certain) to 1.

A signal is a function of the edge's response. With p the probability of a token, H the entropy (nats) and m the margin
at its position (see ``types.Trace.confidence``), over the tokens of all turns:

- ``mean_probability``: 1 - mean p; ``min_probability``: 1 - min p;
- ``sequence_probability``: x / (1 + x), where exp(-x) is the probability of the answer, the product of all p;
- ``mean_entropy``: 1 - exp(-mean H); ``max_entropy``: 1 - exp(-max H);
- ``mean_margin``: 1 - mean m; ``min_margin``: 1 - min m;
- ``answer_probability``: 1 - the product of p over the tokens of the extracted answer, a letter or a number; 1 without
  an answer, and ``mean_probability`` if the benchmark scores the complete text;
- ``option_mismatch``: for multiple choice, 0 if the last option named before the letter is the letter's own, 1 if it is
  another one, 0.5 if none is named;
- ``disagreement``: share of the samples (``samples`` of the edge model) with another answer; for texts 1 - chrF.

Cascades by learned or self-reported confidence: FrugalGPT (arXiv 2305.05176), AutoMix (arXiv 2310.12963). Disagreement:
self-consistency (arXiv 2203.11171).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.benchmarks.scorers import CHOICES, EXTRACTED, text
from ianvs_specdec.common.errors import UserError

Response = Mapping[str, Any]
Triple = Sequence[float]

NO_LOGPROBS = "looks at token probabilities: set logprobs: true in the settings of the edge model"
NO_SAMPLES = "needs samples of the edge's answer: set samples: 2 or more in the settings of the edge model"
_OPTION = re.compile(r"^[ \t(]{0,12}([A-J])[.):][ \t](.+)$", re.MULTILINE)


def _confidence(turn: Mapping[str, Any]) -> Sequence[Triple]:
    confidence: Sequence[Triple] | None = turn["trace"].get("confidence")
    if confidence is None:
        raise UserError(f"CascadeRouter {NO_LOGPROBS}", key="signal")
    return confidence


def _over_tokens(field: int, aggregate: Callable[[list[float]], float]) -> Callable[[Response], float]:
    def signal(response: Response) -> float:
        values = [triple[field] for turn in response["turns"] for triple in _confidence(turn)]
        return aggregate(values) if values else 1.0

    return signal


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_mean_probability = _over_tokens(0, lambda logs: 1.0 - _mean(list(map(math.exp, logs))))


def answer_probability(response: Response) -> float:
    if response["scorer"] not in EXTRACTED:
        return _mean_probability(response)
    if response["prediction"] is None:
        return 1.0
    turn = response["turns"][-1]
    confidence, characters = _confidence(turn), turn["trace"].get("characters")
    span = _span(response["scorer"], response["prediction"], turn["completion"])
    if characters is None or span is None:
        return _mean_probability(response)
    ends = list(itertools.accumulate(characters))
    starts = [0, *ends]
    chosen = zip(confidence, starts, ends, strict=False)
    return 1.0 - math.exp(sum(triple[0] for triple, start, end in chosen if start < span[1] and end > span[0]))


def _span(scorer: str, prediction: str, text: str) -> tuple[int, int] | None:
    """Start and end of the last occurrence of the extracted answer in the text."""
    if scorer in CHOICES:
        pattern = rf"(?<![A-Za-z0-9]){prediction}(?![A-Za-z0-9])"
    else:
        pattern = rf"(?<![\d.]){',?'.join(map(re.escape, prediction))}(?!\d)"
    spans = [match.span() for match in re.finditer(pattern, text)]
    return spans[-1] if spans else None


def option_mismatch(response: Response) -> float:
    query = query_of_row(response)
    found = _OPTION.findall(query.turns[-1])
    options = {letter: text.strip().casefold() for letter, text in found if text.strip()}
    chosen, answer = response["prediction"], without_reasoning(response["turns"][-1]["completion"])
    if response["scorer"] != "choice" or chosen not in options:
        return 1.0 if response["scorer"] == "choice" and chosen is None else 0.5
    span = _span("choice", chosen, answer)
    words = answer[: span[0] if span else None].casefold()
    # Of two matches with the same end the longer one counts: "north" is in "far north".
    named = {letter: (end, len(text)) for letter, text in options.items() if (end := _last(text, words))}
    if not named:
        return 0.5
    last = max(named.values())
    return 0.0 if named.get(chosen) == last else 1.0


def _last(text: str, words: str) -> int:
    """End of the last occurrence of ``text`` as complete words in ``words``, or 0."""
    ends = [match.end() for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", words)]
    return ends[-1] if ends else 0


def disagreement(response: Response) -> float:
    if "samples" not in response:
        raise UserError(f"CascadeRouter's signal disagreement {NO_SAMPLES}", key="signal")
    complete = [sample for sample in response["samples"] if not sample.get("error")]
    if not complete:
        return 1.0
    if response["scorer"] in EXTRACTED:
        return _mean([float(sample["prediction"] != response["prediction"]) for sample in complete])
    return _mean([1.0 - _likeness(sample, response) / 100.0 for sample in complete])


def _likeness(sample: Response, response: Response) -> float:
    """Mean chrF of the turns, 0 to 100."""
    texts, others = (
        [without_reasoning(turn["completion"]) for turn in answer["turns"]] for answer in (sample, response)
    )
    if texts == others:
        return 100.0
    return text(texts, {"references": others}) or 0.0


def check_edge(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Raise UserError if the edge model's hyperparameters do not support one of the signals."""
    for name in names:
        if name == "disagreement" and (settings.get("samples") or 1) < 2:
            raise UserError(f"CascadeRouter's signal {name} {NO_SAMPLES}", key="signal")
        if name in SIGNALS and name not in ("disagreement", "option_mismatch") and not settings.get("logprobs"):
            raise UserError(f"CascadeRouter's signal {name} {NO_LOGPROBS}", key="signal")


SIGNALS: Mapping[str, Callable[[Response], float]] = {
    "mean_probability": _mean_probability,
    "min_probability": _over_tokens(0, lambda logs: 1.0 - math.exp(min(logs))),
    "sequence_probability": _over_tokens(0, lambda logs: (nats := max(0.0, -sum(logs))) / (1.0 + nats)),
    "mean_entropy": _over_tokens(1, lambda entropies: 1.0 - math.exp(-_mean(entropies))),
    "max_entropy": _over_tokens(1, lambda entropies: 1.0 - math.exp(-max(entropies))),
    "mean_margin": _over_tokens(2, lambda margins: 1.0 - _mean(margins)),
    "min_margin": _over_tokens(2, lambda margins: 1.0 - min(margins)),
    "answer_probability": answer_probability,
    "option_mismatch": option_mismatch,
    "disagreement": disagreement,
}
"""Name -> signal. They raise UserError if the response lacks their input."""
