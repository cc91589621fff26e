"""Comparison of an answer with that of autoregressive decoding by the same model."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.records.journal import Entry, Journal

REPORTS_NEAR_TIES = {"fused", "transformers", "llama.cpp"}
"""Targets that report near ties (see ``Trace.target``). The native step has none relative to itself."""


def compare(journal: Journal, baseline_key: str, key: str, entry: Entry, whole: bool = True) -> dict[str, Any] | None:
    """The comparison with the baseline; None if that is unknown. Unless ``whole``, the answer should be its
    beginning."""
    baseline = entry if baseline_key == key else journal.get(baseline_key)
    if baseline is None:
        return None
    own, base = entry.completion, baseline.completion
    wanted = base.token_ids if whole else base.token_ids[: len(own.token_ids)]
    comparable = baseline.hardware == entry.hardware
    comparison: dict[str, Any] = {
        "key": baseline_key,
        "latency": base.trace.latency if comparable else None,
        "token": base.trace.seconds_per_token if comparable else None,
        "issued": base.trace.issued,
        "busy": base.trace.busy,
        "completion_tokens": base.completion_tokens,
        "identical": own.token_ids == wanted,
    }
    if not comparison["identical"]:
        pairs = zip(own.token_ids, base.token_ids, strict=False)
        shorter = min(len(own.token_ids), len(base.token_ids))
        difference = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        near_ties = {position for position, _ in (*own.trace.near_ties, *base.trace.near_ties)}
        targets = {own.trace.target, base.trace.target}
        known = near_ties or targets & REPORTS_NEAR_TIES or targets == {"native"}
        comparison |= {"difference": difference, "near_tie": difference in near_ties if known else None}
    return comparison
