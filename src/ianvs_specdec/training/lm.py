"""Training of a small Llama from scratch, on a CPU or a GPU, with checkpoints.

The recipe: Muon for the matrices and AdamW for the rest, bf16 if the machine multiplies it, constant learning rate with
a linear decay over the last part. A deep model starts shallow and grows by stacking copies of itself (G_stack, arXiv
2405.15319): the first part of the budget then processes several times the tokens. With a teacher, a model learns the
teacher's distribution of each next token instead of the token (arXiv 1503.02531), until its loss on unseen text has
plateaued.
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
from ianvs_specdec.training import optimization
from ianvs_specdec.training.corpus import Batches

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

EMBEDDING_RATE = 10.0
"""Learning rate of the embeddings relative to the rest: they are that much larger."""

MEASURED_EVERY = 500
"""Training steps between measurements of the validation loss, each as expensive as a few steps."""

VALIDATION_BATCHES = 8
"""Batches of the validation loss, always the same: at 8 rows of 256 about 16,000 tokens."""

VALIDATION_SEED = "validation"
"""Not a number, so never the seed of a training."""


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and schedule of one model.

    The budget is ``minutes`` or, if given, at most ``steps``: when the validation loss has plateaued (see
    ``optimization.has_plateaued``), only the decay of the learning rate remains. ``drill`` is the fraction of the
    budget spent on drills first (see ``benchmarks.world.drills``), ``grow_at`` the fraction after which a model of
    ``start_layers`` grows to ``layers`` (0: no growth), ``decay`` the last fraction, in which the learning rate falls
    to zero, ``teacher_at`` the fraction after which a model with a teacher learns from it only. ``tail`` is the world's
    (see ``benchmarks.world.facts.World``): how rarely the text mentions rare facts.
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

    Tokens are then easy to distinguish and to find, so copying is learned early.
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
    for part in ("model.embed_tokens", "model.norm", "lm_head"):
        grown.get_submodule(part).load_state_dict(model.get_submodule(part).state_dict())
    for index, layer in enumerate(grown.model.layers):
        layer.load_state_dict(model.model.layers[index % recipe.start_layers].state_dict())
    return grown


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    kinds: dict[str, list[torch.nn.Parameter]] = {"matrices": [], "embedding": [], "others": []}
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and "lm_head" not in name
        kinds["embedding" if "embed_tokens" in name else "matrices" if inner else "others"].append(parameter)
    groups = [{"params": kinds["embedding"], "factor": EMBEDDING_RATE}, {"params": kinds["others"]}]
    return optimization.optimizers(kinds["matrices"], groups)


def loss_of(
    model: LlamaForCausalLM, tokens: torch.Tensor, weights: torch.Tensor, teacher: LlamaForCausalLM | None = None
) -> torch.Tensor:
    """Weighted cross-entropy of the next token or, with a ``teacher``, KL divergence from its distribution."""
    with optimization.autocast(tokens.device.type):
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
    """The loss on ``VALIDATION_BATCHES`` batches that no training uses."""
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

    ``work`` receives ``checkpoint.pt`` (model, optimizers, step, seconds spent, validation losses) every minute, from
    which a later call resumes. ``evaluate`` returns a line of results, as often or, with a budget in steps, whenever
    the validation loss is measured.
    """
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0, "validation": [], "end": None}
    state["layers"] = recipe.start_layers or recipe.layers
    if saved := optimization.saved(work, device):
        state |= saved["state"]
        report(f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} min spent")
    model: Any = build(recipe, tokenizer, state["layers"])
    model.to(device)
    optimizers = _optimizers(model)
    if saved:
        optimization.restore(saved, "model", model, optimizers)
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
        optimization.set_rate(optimizers, recipe.learning_rate, progress, recipe.decay)
        tokens, weights = (t.to(device) for t in batches.batch(state["step"], progress < recipe.drill))
        loss = loss_of(model, tokens, weights, teacher if progress >= recipe.teacher_at else None)
        loss.backward()
        optimization.update(optimizers, model.parameters())
        state["step"] += 1
        smooth = 0.95 * smooth + 0.05 * loss.item() if smooth else loss.item()
        if measured := bool(recipe.steps) and state["step"] % MEASURED_EVERY == 0:
            _record_loss(state, recipe, validation_loss(model, unseen, teacher, device), report)
        now = time.monotonic()
        state["seconds"] += now - started
        live.at(progress, f"step {state['step']}, loss {smooth:.4f}, {optimization.left(state, progress)} left")
        if measured or now - last_save > optimization.CHECKPOINT_SECONDS:
            optimization.save(work, "model", model, optimizers, state)
            known = f" | {evaluate(model)}" if evaluate and (measured or not recipe.steps) else ""
            report(_summary(state, recipe, smooth) + known)
            last_save = time.monotonic()
    live.close()
    optimization.save(work, "model", model, optimizers, state)
    report(json.dumps({"steps": state["step"], "minutes": round(state["seconds"] / 60, 1), "loss": round(smooth, 4)}))
    return model


def _record_loss(state: dict[str, Any], recipe: ModelRecipe, loss: float, report: Callable[[str], None]) -> None:
    """Record a validation loss, and start the decay of the learning rate if it has plateaued."""
    state["validation"].append(loss)
    report(f"step {state['step']} validation loss {loss:.4f}")
    if recipe.drill <= _progress(state, recipe) < 1 - recipe.decay and optimization.has_plateaued(state["validation"]):
        state["end"] = round(state["step"] / (1 - recipe.decay))
        report(f"the validation loss has plateaued: the learning rate falls until step {state['end']}")


def _progress(state: dict[str, Any], recipe: ModelRecipe) -> float:
    if recipe.steps:
        return float(state["step"] / (state["end"] or recipe.steps))
    return float(state["seconds"]) / (recipe.minutes * 60)


def _summary(state: dict[str, Any], recipe: ModelRecipe, loss: float) -> str:
    step, seconds = state["step"], state["seconds"]
    rate = step * recipe.rows * recipe.length / seconds
    return f"step {step} {seconds / 60:.1f} min loss {loss:.4f} {rate:.0f} token/s"


@torch.no_grad()
def exact_answers(model: LlamaForCausalLM, tokenizer: Any, pairs: list[tuple[str, str]], device: str) -> list[bool]:
    """For each (prompt, answer) in chat form: whether greedy decoding gives exactly the answer."""
    found: list[bool] = []
    for start in range(0, len(pairs), 64):
        batch = pairs[start : start + 64]
        prompts = [len(tokenizer(p, add_special_tokens=False)["input_ids"]) for p, _ in batch]
        encoded = tokenizer(
            [p + a for p, a in batch], add_special_tokens=False, padding=True, padding_side="right", return_tensors="pt"
        )
        ids = encoded["input_ids"].to(device)
        with optimization.autocast(ids.device.type):
            best = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        right = (best == ids[:, 1:]).cpu()
        mask = encoded["attention_mask"][:, 1:].bool().clone()
        for row, size in enumerate(prompts):
            mask[row, : size - 1] = False
        found += (right | ~mask).all(1).tolist()
    return found
