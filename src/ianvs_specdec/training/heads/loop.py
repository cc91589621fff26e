"""Training and measuring of a draft head on a pool; checkpoints and resumes.

As in ``training.lm``: Muon for the matrices and AdamW for the rest, bf16 where the machine multiplies it, a constant
learning rate with a linear decay over the last part.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.common.progress import LiveLine
from ianvs_specdec.training import course
from ianvs_specdec.training.heads.models import TrainableHead
from ianvs_specdec.training.heads.pool import Batch, Order, Sample, collate

PARTS = 4
LEAST_STEPS = 100
"""With fewer a head learns next to nothing: where the budget would not suffice for so many, each is smaller."""
TRIED = 2
"""Samples whose time tells that of a step."""


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained. The budget is ``minutes`` or, where given, ``tokens``: drafts whose loss was computed.

    ``steps``: drafts in a row; draft k counts ``discount ** k``. ``feature_weight``: weight of the SmoothL1 loss of
    predicted features beside the cross-entropy to the target's distribution.
    """

    minutes: float
    tokens: int | None = None
    steps: int = 7
    discount: float = 0.9
    feature_weight: float = 0.1
    rows: int = 32
    learning_rate: float = 4e-3
    decay: float = 0.5
    seed: int = 1


def loss_of(head: TrainableHead, batch: Batch, unembedding: Tensor, recipe: HeadRecipe) -> tuple[Tensor, int]:
    """Summed loss of all drafts in a batch and how many they are."""
    total = torch.zeros((), device=batch.tokens.device)
    with course.autocast(batch.tokens.device.type):
        for step, (logits, feature) in enumerate(head.drafts(batch)):
            valid = batch.valid[step]
            wanted = batch.at(batch.features, step + 1)[valid]
            teacher = functional.linear(wanted, unembedding).float().softmax(-1)
            loss = functional.cross_entropy(logits.float(), teacher, reduction="sum")
            if feature is not None:
                distance = functional.smooth_l1_loss(feature.float(), wanted.float(), reduction="none").mean(-1).sum()
                loss = loss + recipe.feature_weight * distance
            total = total + recipe.discount**step * loss
    return total, int(batch.valid.sum())


@torch.inference_mode()
def accepted_length(head: TrainableHead, samples: Sequence[Sample], steps: int, device: str) -> dict[str, float]:
    """Mean accepted length (tau: tokens per verification, prefill not counted) of greedy chains of ``steps`` drafts on
    the samples, by group: what decoding them would give, worked out from all drafts at once.
    """
    emitted: dict[str, int] = defaultdict(int)
    verified: dict[str, int] = defaultdict(int)
    order = sorted(range(len(samples)), key=lambda i: len(samples[i].starts))
    for first in range(0, len(order), 32):
        chosen = [samples[i] for i in order[first : first + 32]]
        batch = collate(chosen, steps, device)
        right = torch.zeros_like(batch.valid)
        with course.autocast(batch.tokens.device.type):
            for step, (logits, _) in enumerate(head.drafts(batch)):
                valid, best = batch.valid[step], logits.argmax(-1)
                drafted = best if head.kept is None else head.kept[best]
                right[step][valid] = drafted == batch.at(batch.tokens, step + 2)[valid]
        lengths = right.int().cumprod(0).sum(0).cpu()
        for row, sample in enumerate(chosen):
            starts = batch.starts[row, : len(sample.starts)].tolist()
            accepted = dict(zip(starts, lengths[row].tolist(), strict=False))
            for tokens, rounds in _walk(sample, accepted):
                emitted[sample.group] += tokens
                verified[sample.group] += rounds
    return {group: emitted[group] / verified[group] for group in sorted(verified)}


def _walk(sample: Sample, accepted: dict[int, int]) -> list[tuple[int, int]]:
    """(tokens after the first, verifications) of each answer, given how many drafts are accepted at each start."""
    run = sample.run.tolist()
    walks = []
    for begin in (i for i in range(1, len(run)) if run[i] > 1 and (i == 1 or not run[i - 1])):
        position, end, rounds = begin, begin + run[begin] - 1, 0
        while position < end:
            position += min(accepted[position - 1] + 1, end - position)
            rounds += 1
        walks.append((end - begin, rounds))
    return walks


def train(
    head: TrainableHead,
    samples: Sequence[Sample],
    unembedding: Tensor,
    recipe: HeadRecipe,
    work: Path,
    *,
    device: str,
    evaluate: Callable[[TrainableHead], str],
    report: Callable[[str], None] = print,
) -> int:
    """Train ``head`` until the budget is used up; returns the steps of all runs. ``unembedding [drafted, hidden]``.

    ``work`` receives ``checkpoint.pt`` (head, optimizers, step, seconds and drafts so far) every minute; a later call
    with the same folder, samples and recipe goes on from there. ``evaluate`` is asked for a line of results as often.
    """
    work.mkdir(parents=True, exist_ok=True)
    head.to(device)
    unembedding = unembedding.to(device, course.compute_dtype(device))
    optimizers = _optimizers(head)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0, "tokens": 0}
    if saved := course.saved(work, device):
        state = saved["state"]
        course.restore(saved, "head", head, optimizers)
        report(f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} min spent")

    # A run that goes on with the same budget sees the same batches.
    if state.get("budget") != (budget := [recipe.minutes, recipe.tokens]):
        state |= {"budget": budget, "rows": _rows(head, samples, unembedding, recipe, device)}
    if (rows := int(state["rows"])) < recipe.rows:
        report(f"{rows} conversations a step, not {recipe.rows}: the budget is short")
    order = Order([len(sample.starts) for sample in samples], rows=rows, parts=PARTS, seed=recipe.seed)
    last_save, smooth, live = time.monotonic(), 0.0, LiveLine()
    while (progress := _progress(state, recipe)) < 1:
        started = time.monotonic()
        course.set_rate(optimizers, recipe.learning_rate, progress, recipe.decay)
        parts = [[samples[i] for i in part] for part in order.step(state["step"])]
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + state["step"])
        total, drafts = _gradients(head, parts, unembedding, recipe, device, generator)
        course.update(optimizers, head.parameters())
        state["step"] += 1
        state["tokens"] += drafts
        state["seconds"] += time.monotonic() - started
        smooth = total / drafts if not smooth else 0.95 * smooth + 0.05 * total / drafts
        left = course.left(state, _progress(state, recipe))
        live.at(progress, f"step {state['step']}, loss {smooth:.4f}, {left} left")
        if time.monotonic() - last_save > course.CHECKPOINT_SECONDS:
            course.save(work, "head", head, optimizers, state)
            report(f"step {state['step']} loss {smooth:.4f}, {left} left | {evaluate(head)}")
            last_save = time.monotonic()
    live.close()
    course.save(work, "head", head, optimizers, state)
    report(f"done: {state['step']} steps, {state['seconds'] / 60:.1f} min, loss {smooth:.4f} | {evaluate(head)}")
    return int(state["step"])


def _gradients(
    head: TrainableHead,
    parts: Sequence[Sequence[Sample]],
    unembedding: Tensor,
    recipe: HeadRecipe,
    device: str,
    generator: torch.Generator,
) -> tuple[float, int]:
    """Leave with the parameters the mean gradient of all drafts; returns their summed loss and how many they are."""
    total, drafts = 0.0, 0
    for part in parts:
        batch = collate(part, recipe.steps, device, head.most_starts, generator)
        loss, size = loss_of(head, batch, unembedding, recipe)
        loss.backward()
        total, drafts = total + loss.item(), drafts + size
    for gradient in [parameter.grad for parameter in head.parameters() if parameter.grad is not None]:
        gradient /= max(drafts, 1)
    return total, drafts


def _rows(head: TrainableHead, samples: Sequence[Sample], unembedding: Tensor, recipe: HeadRecipe, device: str) -> int:
    """How many samples a step may have so that the minutes suffice for enough steps. A budget in tokens is the same
    training on every machine, and stays it.
    """
    if recipe.tokens is not None:
        return recipe.rows
    tried = sorted(samples, key=lambda sample: len(sample.starts))[len(samples) // 2 :][:TRIED]
    spent = 0.0
    # The first time includes what is done once only.
    for _ in range(2):
        started = time.monotonic()
        loss_of(head, collate(tried, recipe.steps, device, head.most_starts), unembedding, recipe)[0].backward()
        head.zero_grad(set_to_none=True)
        spent = time.monotonic() - started
    return max(1, min(recipe.rows, int(60 * recipe.minutes / LEAST_STEPS / max(spent / len(tried), 1e-9))))


def _progress(state: dict[str, Any], recipe: HeadRecipe) -> float:
    if recipe.tokens is not None:
        return float(state["tokens"]) / recipe.tokens
    return float(state["seconds"]) / (recipe.minutes * 60)


def _optimizers(head: TrainableHead) -> list[torch.optim.Optimizer]:
    """Muon for what is a matrix inside, AdamW for norms, biases and output matrices."""
    outputs = {id(parameter) for parameter in head.output_matrices()}
    trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in outputs]
    others = [p for p in trained if p.ndim != 2 or id(p) in outputs]
    return course.optimizers(matrices, others)
