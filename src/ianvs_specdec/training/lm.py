"""Training of a small Llama from nothing, on a CPU or a GPU; checkpoints and resumes.

The recipe: Muon for the matrices and AdamW for the rest, bf16 where the machine multiplies it, constant learning rate
with a linear decay over the last part. A deep model starts shallow and grows by stacking copies of itself (G_stack,
arXiv 2405.15319): the first part of the budget then sees several times the tokens. With a teacher a model learns the
teacher's distribution of each next token instead of the token (arXiv 1503.02531), until its loss on text of its own
kind stands still.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ianvs_specdec.common.progress import LiveLine
from ianvs_specdec.training import course
from ianvs_specdec.training.corpus import Batches

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

EMBEDDING_RATE = 10.0
"""Learning rate of the embeddings relative to the rest: they are that much larger."""

MEASURED_EVERY = 500
"""Training steps between two measurements of the validation loss: a measurement costs as much as a few steps."""

VALIDATION_BATCHES = 8
"""Batches of the validation loss, always the same: of 8 rows of 256 they are some 16,000 tokens."""

VALIDATION_SEED = "validation"
"""Of no training: a training's seed is a number."""


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and schedule of one model.

    The budget is ``minutes`` or, where given, ``steps``, the most there will be: when the validation loss stands still
    (see ``course.stands_still``), what is left is the decay of the learning rate. ``drill`` is the part of the budget
    spent on drills first (see ``benchmarks.world.drills``), ``grow_at`` the part after which a model of
    ``start_layers`` grows to ``layers`` (0: no growth), ``decay`` the part at whose end the learning rate is zero,
    ``teacher_at`` the part after which a model with a teacher learns from it, and no longer from the tokens. ``tail``
    is the world's (see ``benchmarks.world.facts.World``): how seldom the text speaks of what is rare.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    minutes: float = 0.0
    steps: int | None = None
    start_layers: int = 0
    grow_at: float = 0.0
    drill: float = 0.1
    rows: int = 16
    length: int = 256
    learning_rate: float = 3e-3
    decay: float = 0.4
    tail: float = 1.0
    teacher_at: float = 0.0
    seed: int = 1


def build(recipe: ModelRecipe, tokenizer: Any, layers: int) -> LlamaForCausalLM:
    """An untrained Llama that starts as its own embedding: large random embeddings, output projections of zero.

    With nothing added to them yet, tokens are easy to tell apart and to find again, so copying is learned early.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(parameter)
        elif any(part in name for part in ("lm_head", "o_proj", "down_proj")):
            torch.nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=recipe.hidden**-0.5)
    return model


def grow(model: LlamaForCausalLM, recipe: ModelRecipe, tokenizer: Any) -> LlamaForCausalLM:
    """The full-depth model whose layer i is a copy of layer ``i % start_layers``."""
    grown = build(recipe, tokenizer, recipe.layers)
    _copy_outside(model, grown)
    for index, layer in enumerate(grown.model.layers):
        layer.load_state_dict(model.model.layers[index % recipe.start_layers].state_dict())
    return grown


def _copy_outside(source: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    for part in ("model.embed_tokens", "model.norm", "lm_head"):
        target.get_submodule(part).load_state_dict(source.get_submodule(part).state_dict())


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    kinds: dict[str, list[torch.nn.Parameter]] = {"matrices": [], "embedding": [], "others": []}
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and "lm_head" not in name
        kinds["embedding" if "embed_tokens" in name else "matrices" if inner else "others"].append(parameter)
    groups = [{"params": kinds["embedding"], "factor": EMBEDDING_RATE}, {"params": kinds["others"]}]
    return course.optimizers(kinds["matrices"], groups)


def loss_of(
    model: LlamaForCausalLM, tokens: torch.Tensor, weights: torch.Tensor, teacher: LlamaForCausalLM | None = None
) -> torch.Tensor:
    """Weighted cross-entropy of the next token or, with a ``teacher``, divergence from its distribution of it (KL)."""
    with course.autocast(tokens.device.type):
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1).float()
    if teacher is None:
        losses = functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    else:
        with torch.no_grad():
            wanted = teacher(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1).float().log_softmax(-1)
        losses = functional.kl_div(logits.log_softmax(-1), wanted, reduction="none", log_target=True).sum(-1)
    weight = weights[:, 1:].flatten()
    return (losses * weight).sum() / weight.sum()


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, batches: Batches, teacher: LlamaForCausalLM | None, device: str) -> float:
    """The loss on ``VALIDATION_BATCHES`` batches that no training sees."""
    total = 0.0
    for step in range(VALIDATION_BATCHES):
        tokens, weights = (t.to(device) for t in batches.batch(step))
        total += loss_of(model, tokens, weights, teacher).item()
    return total / VALIDATION_BATCHES


def train(
    recipe: ModelRecipe,
    tokenizer: Any,
    work: Path,
    *,
    device: str,
    teacher: LlamaForCausalLM | None = None,
    evaluate: Callable[[LlamaForCausalLM], str] | None = None,
    report: Callable[[str], None] = print,
) -> LlamaForCausalLM:
    """Train until the recipe's budget is used up and return the model in float32.

    ``work`` receives ``checkpoint.pt`` (model, optimizers, step, seconds spent, validation losses) every minute; a
    later call with the same folder goes on from there. ``evaluate`` is asked for a line of results as often or, with a
    budget in steps, whenever the validation loss is measured.
    """
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0, "validation": [], "end": None}
    state["layers"] = recipe.start_layers or recipe.layers
    if saved := course.saved(work, device):
        state |= saved["state"]
        report(f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} min spent")
    model: Any = build(recipe, tokenizer, state["layers"])
    model.to(device)
    optimizers = _optimizers(model)
    if saved:
        course.restore(saved, "model", model, optimizers)
    kind: Any = {"rows": recipe.rows, "length": recipe.length, "tail": recipe.tail}
    batches, unseen = (Batches(tokenizer, seed=seed, **kind) for seed in (recipe.seed, VALIDATION_SEED))
    last_save, smooth, live = time.monotonic(), 0.0, LiveLine()
    while (progress := _progress(state, recipe)) < 1:
        started = time.monotonic()
        if state["layers"] < recipe.layers and progress >= recipe.grow_at:
            report(f"growing from {state['layers']} to {recipe.layers} layers")
            model = grow(model, recipe, tokenizer)
            model.to(device)
            optimizers = _optimizers(model)
            state["layers"] = recipe.layers
        course.set_rate(optimizers, recipe.learning_rate, progress, recipe.decay)
        tokens, weights = (t.to(device) for t in batches.batch(state["step"], progress < recipe.drill))
        loss = loss_of(model, tokens, weights, teacher if progress >= recipe.teacher_at else None)
        loss.backward()
        course.update(optimizers, model.parameters())
        state["step"] += 1
        smooth = 0.95 * smooth + 0.05 * loss.item() if smooth else loss.item()
        if measured := bool(recipe.steps) and state["step"] % MEASURED_EVERY == 0:
            _measured(state, recipe, validation_loss(model, unseen, teacher, device), report)
        now = time.monotonic()
        state["seconds"] += now - started
        live.at(progress, f"step {state['step']}, loss {smooth:.4f}, {course.left(state, progress)} left")
        if measured or now - last_save > course.CHECKPOINT_SECONDS:
            course.save(work, "model", model, optimizers, state)
            known = f" | {evaluate(model)}" if evaluate and (measured or not recipe.steps) else ""
            report(_standing(state, recipe, smooth) + known)
            last_save = time.monotonic()
    live.close()
    course.save(work, "model", model, optimizers, state)
    report(json.dumps({"steps": state["step"], "minutes": round(state["seconds"] / 60, 1), "loss": round(smooth, 4)}))
    return model


def _measured(state: dict[str, Any], recipe: ModelRecipe, loss: float, report: Callable[[str], None]) -> None:
    """Keep a validation loss, and where it stands still, let the decay begin."""
    state["validation"].append(loss)
    report(f"step {state['step']} validation loss {loss:.4f}")
    if recipe.drill <= _progress(state, recipe) < 1 - recipe.decay and course.stands_still(state["validation"]):
        state["end"] = round(state["step"] / (1 - recipe.decay))
        report(f"the validation loss stands still: the learning rate falls until step {state['end']}")


def _progress(state: dict[str, Any], recipe: ModelRecipe) -> float:
    if recipe.steps:
        return float(state["step"] / (state["end"] or recipe.steps))
    return float(state["seconds"]) / (recipe.minutes * 60)


def _standing(state: dict[str, Any], recipe: ModelRecipe, loss: float) -> str:
    step, seconds = state["step"], state["seconds"]
    rate = step * recipe.rows * recipe.length / seconds
    return f"step {step} {seconds / 60:.1f} min loss {loss:.4f} {rate:.0f} token/s"


@torch.no_grad()
def exact_answers(model: LlamaForCausalLM, tokenizer: Any, pairs: list[tuple[str, str]], device: str) -> list[bool]:
    """For each (prompt, answer) in chat form: whether greedy decoding would give the answer token for token."""
    found: list[bool] = []
    for start in range(0, len(pairs), 64):
        batch = pairs[start : start + 64]
        prompts = [len(tokenizer(p, add_special_tokens=False)["input_ids"]) for p, _ in batch]
        encoded = tokenizer(
            [p + a for p, a in batch], add_special_tokens=False, padding=True, padding_side="right", return_tensors="pt"
        )
        ids = encoded["input_ids"].to(device)
        with course.autocast(ids.device.type):
            best = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        right = (best == ids[:, 1:]).cpu()
        mask = encoded["attention_mask"][:, 1:].bool().clone()
        for row, size in enumerate(prompts):
            mask[row, : size - 1] = False
        found += (right | ~mask).all(1).tolist()
    return found
