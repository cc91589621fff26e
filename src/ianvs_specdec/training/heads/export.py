"""Trained heads in the official formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ianvs_specdec.training.heads.dflash import TrainableDFlash
from ianvs_specdec.training.heads.models import TrainableEagle, TrainableEagle3, TrainableHead, TrainableMedusa
from ianvs_specdec.training.optimization import replaced

MEDUSA_FILE = "medusa_lm_head.pt"

TARGETS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "vocab_size"),
)
"""Configuration keys that a head copies from its target."""


def head_config(config: Any) -> Any:
    """A ``LlamaConfig`` of one layer with the shape of the target's layers."""
    from transformers import LlamaConfig

    rope = _rope(config)
    # Current transformers read one key, those before version 5 the other two.
    current = {"rope_parameters": rope}
    former = {"rope_theta": rope["rope_theta"], "rope_scaling": _scaling(rope)}
    return LlamaConfig(
        **{key: getattr(config, key) for key in TARGETS},
        num_hidden_layers=1,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        tie_word_embeddings=False,
        **(current if hasattr(config, "rope_parameters") else former),
    )


def _rope(config: Any) -> dict[str, Any]:
    """Rotary embedding of a configuration, theta included, for any version of transformers."""
    if current := getattr(config, "rope_parameters", None):
        return dict(current)
    scaling = getattr(config, "rope_scaling", None) or {"rope_type": "default"}
    return {**scaling, "rope_theta": getattr(config, "rope_theta", 10000.0)}


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    """The key ``rope_scaling`` of configurations before transformers 5."""
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return None if scaling.get("rope_type", "default") == "default" else scaling


def write(head: TrainableHead, config: Any, base: str, out: Path) -> None:
    """Write the head in bf16 with its config.json to the folder ``out``, atomically."""
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16 if value.is_floating_point() else value.dtype).contiguous()
        for name, value in head.state_dict().items()
    }
    with replaced(out) as temporary:
        if isinstance(head, TrainableMedusa):
            torch.save(tensors, temporary / MEDUSA_FILE)
            settings = _medusa(head, config, base)
        else:
            save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
            settings = _dflash(head, config) if isinstance(head, TrainableDFlash) else _eagle(head, config)
        (temporary / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for file in temporary.iterdir():
            # safetensors creates private files.
            file.chmod(0o644)


def _medusa(head: TrainableMedusa, config: Any, base: str) -> dict[str, Any]:
    """The keys of the official file, and those that vLLM needs."""
    return {
        "medusa_num_heads": head.heads,
        "medusa_num_layers": head.blocks,
        "base_model_name_or_path": base,
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }


def _dflash(head: TrainableDFlash, config: Any) -> dict[str, Any]:
    """The keys of the authors' files, in which a layer is numbered by its output."""
    read = {"mask_token_id": head.mask, "target_layer_ids": [index - 1 for index in head.inputs]}
    own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": len(head.layers)}
    return {**_llama(config), **own, "attention_bias": False, "block_size": head.block, "dflash_config": read}


def _eagle(head: TrainableHead, config: Any) -> dict[str, Any]:
    """The keys of the official files, and those of the kind."""
    settings = _llama(config)
    if isinstance(head, TrainableEagle):
        return settings | {"bias": False}
    assert isinstance(head, TrainableEagle3)
    return settings | {"draft_vocab_size": len(head.lm_head.weight), "target_hidden_size": config.hidden_size}


def _llama(config: Any) -> dict[str, Any]:
    """The keys of a Llama as transformers 4 writes them."""
    keys = (*TARGETS, "head_dim", "hidden_act", "num_hidden_layers", "tie_word_embeddings")
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    rope = _rope(config)
    settings = llama | {key: getattr(config, key) for key in keys}
    return settings | {"rope_theta": rope["rope_theta"], "rope_scaling": _scaling(rope)}
