"""Models that our own forwards compute: Llama, Mistral, Qwen2 and Qwen3 as transformers builds them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import PromptChunk, Target
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.models.rotary import ROTATIONS, rotary

PLAIN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
BY_LAYER = ("layer_types", "no_rope_layers")
"""Keys of configurations that have a value for each layer."""
_EXCERPT_TOKENS = 64
_TOLERANCE = 1e-3
"""Of the logits' standard deviation: far above rounding, far below what another computation would make."""


def rotations(model: Any, positions: int, start: int = 0) -> Tensor:
    """The rotary embedding as complex factors ``[positions, head_dim / 2]`` of the model's own angles and scale, for
    positions from ``start`` on."""
    where = torch.arange(start, start + positions, device=model.device)[None]
    like = torch.empty(0, dtype=torch.float32, device=model.device)
    cosine, sine = (part[0, :, : part.shape[-1] // 2] for part in model.model.rotary_emb(like, where))
    kind = torch.float64 if model.dtype == torch.float64 else torch.float32
    return torch.complex(cosine.to(kind), sine.to(kind))


def paired(rows: Tensor, width: int) -> Tensor:
    """Rows of a projection, head by head, from (first half, second half) to pairs of one of each."""
    return rows.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).reshape(rows.shape)


def is_plain(model: Any) -> bool:
    """Whether a ``transformers`` causal LM is of these families, without what only some of their models have."""
    config = model.config.get_text_config()
    kind = rotary(config)["rope_type"]
    sliding = any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ())
    sliding = sliding or (config.model_type == "mistral" and config.sliding_window is not None)
    if config.model_type not in PLAIN_FAMILIES or kind not in ROTATIONS or sliding or config.hidden_act != "silu":
        return False
    return has_plain_projections(model)


def has_plain_projections(model: Any) -> bool:
    """Whether all projections and the output matrix are plain ``torch.nn.Linear``: not quantized, not adapted."""
    projections = [
        module
        for layer in model.model.layers
        for name, module in layer.named_modules()
        if name.endswith("_proj") or isinstance(module, torch.nn.Linear)
    ]
    return all(type(module) is torch.nn.Linear for module in [*projections, model.get_output_embeddings()])


def agrees(model: Any, target: Callable[[Any], Target]) -> bool:
    """Whether what ``target`` makes of a model computes what the model does, on a few tokens with each layer alone.

    Both compute in float32, where they differ by rounding of some 1e-6, whatever the model's own dtype.
    """
    return all(_agrees(model, layer, target) for layer in model.model.layers)


def _agrees(model: Any, layer: torch.nn.Module, target: Callable[[Any], Target]) -> bool:
    tokens = [1, 2, 3, 0, 2, 1]
    probe = _excerpt(model, layer).float()
    with torch.inference_mode():
        expected = probe(torch.tensor([tokens], device=model.device), use_cache=False).logits[0, -3:]
        tried = target(probe)
        sequence = tried.open()
        tried.step([(sequence, PromptChunk(tokens[:3]))])
        (got,) = tried.step([(sequence, TokenTree.chain(tokens[3], tokens[4:]))])
    return bool((got.logits - expected).abs().max() <= _TOLERANCE * expected.std())


def _excerpt(model: Any, layer: torch.nn.Module) -> Any:
    """A copy of ``model`` with one layer and the first tokens of its vocabulary, hooks and all that was put into it
    included."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    instead: dict[int, Any] = {id(model.model.layers): torch.nn.ModuleList([copy.deepcopy(layer)])}
    for weights in (embedding.weight, head.weight, head.bias):
        if weights is not None:
            instead[id(weights)] = torch.nn.Parameter(weights.detach()[:_EXCERPT_TOKENS].clone())
    excerpt = copy.deepcopy(model, instead)
    excerpt.get_input_embeddings().padding_idx = None
    config = excerpt.config.get_text_config()
    config.num_hidden_layers = 1
    index = next(index for index, each in enumerate(model.model.layers) if each is layer)
    for key in BY_LAYER:
        if (listed := getattr(config, key, None)) is not None:
            setattr(config, key, [listed[index]])
    return excerpt
