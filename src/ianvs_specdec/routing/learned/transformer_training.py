"""Training of a transformer with one logit: AdamW, warm-up and linear decay."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ianvs_specdec.routing.outcomes.recorded import Floats

log = logging.getLogger(__name__)

WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""
CLIP = 1.0
SCORED_AT_ONCE = 64
SORTED_BATCHES = 16
"""Batches are cut from so many batches' worth of queries sorted by length: little padding, and still a random order."""

Tokens = list[int]


@dataclass(frozen=True)
class Schedule:
    """How to train; see ``transformer.TransformerClassifier``."""

    epochs: int
    learning_rate: float
    batch_size: int
    weight_decay: float
    seed: int


def logits_of(model: Any, inputs: Sequence[Tokens], pad: int) -> torch.Tensor:
    """float32 [inputs]. One input goes without padding and mask."""
    rows = [torch.tensor(tokens, device=model.device) for tokens in inputs]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad)
    if len(rows) == 1:
        return model(input_ids=ids).logits[:, 0].float()
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return model(input_ids=ids, attention_mask=mask).logits[:, 0].float()


@torch.inference_mode()
def scores_of(model: Any, inputs: Sequence[Tokens], pad: int) -> Floats:
    """The sigmoid of the logits, float64 [inputs]. The model is in evaluation mode."""
    scores = np.zeros(len(inputs))
    order = np.argsort([len(tokens) for tokens in inputs], kind="stable")
    for start in range(0, len(order), SCORED_AT_ONCE):
        rows = order[start : start + SCORED_AT_ONCE]
        scores[rows] = torch.sigmoid(logits_of(model, [inputs[row] for row in rows], pad).double()).cpu().numpy()
    return scores


def train(model: Any, inputs: Sequence[Tokens], targets: Floats, schedule: Schedule, pad: int) -> None:
    """Train ``model`` in place on token ids and labels (float64 [inputs], 0 to 1). Draws from torch's generator."""
    rng = np.random.default_rng(schedule.seed)
    rows = rng.permutation(len(inputs))
    optimizer = _optimizer(model, schedule)
    steps = schedule.epochs * math.ceil(len(rows) / schedule.batch_size)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    labels = torch.tensor(targets, dtype=torch.float32, device=model.device)
    model.train()
    for epoch in range(schedule.epochs):
        started, total = time.perf_counter(), 0.0
        for batch in _batches(inputs, rows, schedule.batch_size, rng):
            logits = logits_of(model, [inputs[row] for row in batch], pad)
            loss = functional.binary_cross_entropy_with_logits(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            rates.step()
            total += loss.item() * len(batch)
        seconds = time.perf_counter() - started
        log.info("epoch %d of %d: loss %.4f, %.0f s", epoch + 1, schedule.epochs, total / len(rows), seconds)
    model.eval()


def _optimizer(model: Any, schedule: Schedule) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate)


def _rate(step: int, steps: int) -> float:
    """Factor of the learning rate."""
    warm_up = max(1.0, WARM_UP * steps)
    return min((step + 1) / warm_up, max(0.0, (steps - step) / max(1.0, steps - warm_up)))


def _batches(inputs: Sequence[Tokens], rows: np.ndarray, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    shuffled = rng.permutation(rows)
    batches = []
    for start in range(0, len(shuffled), size * SORTED_BATCHES):
        chunk = shuffled[start : start + size * SORTED_BATCHES]
        chunk = chunk[np.argsort([len(inputs[row]) for row in chunk], kind="stable")]
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    for index in rng.permutation(len(batches)):
        yield batches[index]
