"""Tiny random models of the families of the native step, so small that windows, caps and lengths matter."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 64
WINDOW, TURN = 8, 24
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_SLIDING = ["sliding_attention", "full_attention"] * 2
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": TURN,
    "short_factor": [1.0, 1.1],
    "long_factor": [1.5, 6.0],
}
_EXPERTS = {"num_experts_per_tok": 2, "num_experts": 5}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3-sliding": (
        "smollm3",
        {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3-partial": ("phi3", {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "phi3-longrope": (
        "phi3",
        {
            "max_position_embeddings": 128,
            "original_max_position_embeddings": TURN,
            "rope_parameters": _LONGROPE,
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 8.0,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2": ("olmo2", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW, "head_dim": 12}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": _SLIDING, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 12,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "query_pre_attn_scalar": 5,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            },
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": WINDOW}),
    "qwen3-moe": (
        "qwen3_moe",
        {**_EXPERTS, "moe_intermediate_size": 24, "norm_topk_prob": True, "mlp_only_layers": [1], "head_dim": 8},
    ),
    "olmoe": ("olmoe", _EXPERTS),
}


def family_model(name: str, seed: int = 0, **overrides: Any) -> Any:
    """A random float32 causal LM, including norms and biases."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**_SIZES, **settings, **overrides})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model
