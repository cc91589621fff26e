"""Finished heads as folders in the official formats."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ianvs_specdec.training.heads.models import Head, TrainableEagle, TrainableEagle3, TrainableMedusa

MEDUSA_FILE = "medusa_lm_head.pt"


def head_config(config: Any) -> Any:
    """A ``LlamaConfig`` of one layer in the shape of the target's layers."""
    from transformers import LlamaConfig

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = _rope(config)
    # Current transformers read one key, those before version 5 the other two.
    current = {"rope_parameters": rope}
    former = {"rope_theta": rope["rope_theta"], "rope_scaling": _scaling(rope)}
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        tie_word_embeddings=False,
        **(current if hasattr(config, "rope_parameters") else former),
    )


def _rope(config: Any) -> dict[str, Any]:
    """Rotary embedding of a configuration, theta included, whichever transformers it comes from."""
    if current := getattr(config, "rope_parameters", None):
        return dict(current)
    scaling = getattr(config, "rope_scaling", None) or {"rope_type": "default"}
    return {**scaling, "rope_theta": getattr(config, "rope_theta", 10000.0)}


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    """The key ``rope_scaling`` of configurations as they were before transformers 5."""
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return None if scaling.get("rope_type", "default") == "default" else scaling


def write(head: Head, config: Any, base: str, out: Path) -> None:
    """The head in bf16 with its config.json as the folder ``out``, which is replaced, complete or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{random.randrange(1 << 32):08x}")
    temporary.mkdir()
    try:
        tensors = {
            name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in head.state_dict().items()
        }
        if isinstance(head, TrainableMedusa):
            torch.save(tensors, temporary / MEDUSA_FILE)
            settings = _medusa(head, config, base)
        else:
            save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
            settings = _eagle(head, config)
        (temporary / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for file in temporary.iterdir():
            # safetensors makes its files private; these are ordinary ones.
            file.chmod(0o644)
        if out.exists():
            shutil.rmtree(out)
        os.replace(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _medusa(head: TrainableMedusa, config: Any, base: str) -> dict[str, Any]:
    """The keys of the official file, and the ones that vLLM wants."""
    return {
        "medusa_num_heads": head.heads,
        "medusa_num_layers": head.blocks,
        "base_model_name_or_path": base,
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }


def _eagle(head: Head, config: Any) -> dict[str, Any]:
    """The keys of the official files: those of a Llama as transformers 4 writes them, and what the kind adds."""
    keys = (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
        "vocab_size",
    )
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    rope = _rope(config)
    settings = llama | {key: getattr(config, key) for key in keys}
    settings |= {"rope_theta": rope["rope_theta"], "rope_scaling": _scaling(rope)}
    if isinstance(head, TrainableEagle):
        return settings | {"bias": False}
    assert isinstance(head, TrainableEagle3)
    return settings | {"draft_vocab_size": config.vocab_size, "target_hidden_size": config.hidden_size}
