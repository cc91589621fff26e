"""What a probe makes of hidden states: a logistic regression, of the states themselves or of one hidden layer's units.

A regression needs few queries. A hidden layer finds more where there are thousands: whether an edge knows a thing is
no straight line in its states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.learned import logistic
from ianvs_specdec.routing.outcomes.recorded import Floats

FLAT = 1e-6
"""A state that changes less than that says nothing."""
EPOCHS = 30
"""Twice as many made probes of 19,500 queries no better, half as many a little worse."""
LEAST_STEPS = 300
"""With fewer a hidden layer has learned nothing; few queries are shown more often."""
BATCH = 256
"""Queries of a step."""
LEARNING_RATE = 2e-3
"""The highest; it rises to it and falls to zero again."""
DROPOUT = 0.2
WEIGHT_DECAY = 0.05
"""Both keep some thousand queries from being learned by heart; up to 0.4 and 0.3 changed little."""


@dataclass(frozen=True, eq=False)
class Readout:
    """``sigmoid(weights @ seen + constant)``, where ``seen`` is ``(x - mean) / scale`` or, with a hidden layer,
    ``relu(inner @ ((x - mean) / scale) + bias)``.

    float64: ``mean`` and ``scale`` [columns], ``weights`` [columns] or [units], ``inner`` [units, columns], ``bias``
    [units]. Raises ValueError where these do not fit each other.
    """

    mean: Floats
    scale: Floats
    weights: Floats
    constant: float
    inner: Floats | None = None
    bias: Floats | None = None

    def __post_init__(self) -> None:
        units = self.mean.shape if self.inner is None else self.inner.shape[:1]
        wide = self.inner is None or self.inner.shape[1:] == self.mean.shape
        biased = self.bias is None if self.inner is None else self.bias is not None and self.bias.shape == units
        if self.mean.ndim != 1 or self.scale.shape != self.mean.shape or self.weights.shape != units:
            raise ValueError("mean, scale and weights do not fit each other")
        if not wide or not biased:
            raise ValueError("inner and bias do not fit each other, or the mean")
        if self.scale.min(initial=1.0) <= 0:
            raise ValueError("a scale is not above 0")

    def standardized(self, x: Floats) -> Floats:
        """float64 [queries, columns]."""
        return (x - self.mean) / self.scale

    def __call__(self, x: Floats) -> Floats:
        """float64 [queries], from 0 to 1, of [queries, columns]."""
        seen = self.standardized(x)
        if self.inner is not None and self.bias is not None:
            seen = np.maximum(seen @ self.inner.T + self.bias, 0.0)
        return logistic.sigmoid(seen @ self.weights + self.constant)


def _moments(x: Floats) -> tuple[Floats, Floats]:
    return x.mean(axis=0), np.maximum(x.std(axis=0), FLAT)


def fit_linear(x: Floats, targets: Floats, ridge: float) -> Readout:
    """``x``: float64 [queries, columns]; ``targets``: [queries], 0 to 1; ``ridge``: how strongly weights are drawn to
    0."""
    mean, scale = _moments(x)
    return Readout(mean, scale, *logistic.fit((x - mean) / scale, targets, ridge=ridge))


def fit_hidden(x: Floats, targets: Floats, units: int, seed: int) -> Readout:
    """As ``fit_linear``, with a hidden layer of ``units``, trained by AdamW with dropout on states and units."""
    import torch
    from torch import nn

    mean, scale = _moments(x)
    given, labels = torch.from_numpy(((x - mean) / scale).astype(np.float32)), torch.from_numpy(targets).float()
    # Dropout and first weights draw from torch's own generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner, outer = nn.Linear(x.shape[1], units), nn.Linear(units, 1)
        model = nn.Sequential(nn.Dropout(DROPOUT), inner, nn.ReLU(), nn.Dropout(DROPOUT), outer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        batches = math.ceil(len(x) / BATCH)
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / batches))
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * batches)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = nn.functional.binary_cross_entropy_with_logits(model(given[rows])[:, 0], labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rates.step()

    def array(tensor: torch.Tensor) -> NDArray[np.float64]:
        return tensor.detach().double().numpy()

    return Readout(mean, scale, array(outer.weight)[0], outer.bias.item(), array(inner.weight), array(inner.bias))
