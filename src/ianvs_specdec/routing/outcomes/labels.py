"""Training labels of routers, from 0 (edge) to 1 (cloud). S is the quality of an answer.

- ``hard``: S_edge < 0.5;
- ``hybrid``: S_cloud - S_edge > ``epsilon`` (deterministic router of Hybrid LLM, arXiv 2404.14618);
- ``soft``: 1 - Pr[q_edge >= q_cloud - t] over several answers of each model, with the t for which the labels differ
  most (its probabilistic router with data transformation);
- ``gain``: (1 + S_cloud - S_edge) / 2.
"""

from __future__ import annotations

import itertools

import numpy as np

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes, Samples

LABELS = ("hard", "hybrid", "soft", "gain")
CANDIDATES = 100
"""No more shifts ``t`` than about this are tried."""


def targets(outcomes: Outcomes, kind: str = "hybrid", epsilon: float = 0.0) -> Floats:
    """The label of each query, float64 [queries] from 0 to 1.

    Raises UserError if all queries have the same label: there would be nothing to learn.
    """
    values = label_values(outcomes, kind, epsilon)
    if np.ptp(values) == 0:
        raise UserError(
            f"all {len(outcomes)} queries have the {kind} label {values[0]:g} (quality of the edge "
            f"{outcomes.edge.mean():.3f}, of the cloud {outcomes.cloud.mean():.3f}): there is nothing to learn"
        )
    return values


def label_values(outcomes: Outcomes, kind: str, epsilon: float) -> Floats:
    """The label of each query, whatever they are. Soft labels are made with these queries' own shift."""
    if kind not in LABELS:
        raise unknown("label", kind, LABELS)
    if kind == "hard":
        return (outcomes.edge < 0.5).astype(np.float64)
    if kind == "hybrid":
        return (outcomes.gain > epsilon).astype(np.float64)
    if kind == "gain":
        return (1.0 + outcomes.gain) / 2.0
    return soft_labels(outcomes)[0]


def soft_labels(outcomes: Outcomes) -> tuple[Floats, float]:
    """The soft labels, float64 [queries], and the shift t with the largest mean absolute difference of two labels."""
    edge, cloud = outcomes.edge_samples, outcomes.cloud_samples
    if edge is None or cloud is None:
        raise UserError("soft labels need edge_samples and cloud_samples: specdec route label --samples N writes them")
    gaps = _gaps(edge, cloud)
    shifts = np.unique(np.concatenate([[0.0], *gaps]))
    shifts = shifts[shifts >= 0]
    if len(shifts) > CANDIDATES:
        shifts = np.unique(np.quantile(shifts, np.linspace(0, 1, CANDIDATES)))
    candidates = [(np.array([float((gap > shift).mean()) for gap in gaps]), float(shift)) for shift in shifts]
    return max(candidates, key=lambda candidate: _spread(candidate[0]))


def _gaps(edge: Samples, cloud: Samples) -> list[Floats]:
    """Per query: the cloud's quality minus the edge's for every pair of answers."""
    pairs = (itertools.product(ours, theirs) for ours, theirs in zip(edge, cloud, strict=True))
    # Rounded, so that equal gaps are equal: 0.9 - 0.6 and 0.8 - 0.5 differ in the last bit.
    return [np.round(np.array([theirs - ours for ours, theirs in query]), 9) for query in pairs]


def _spread(labels: Floats) -> float:
    ordered, count = np.sort(labels), len(labels)
    return float(ordered @ (2 * np.arange(count) - count + 1)) * 2 / count**2
