"""Tiny checkpoints with MTP layers, of the families that transformers knows."""

from __future__ import annotations

import re

import torch
from safetensors.torch import load_file, save_file

COMMON = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROUTED = {"routed_scaling_factor": 1.0}
EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **ROUTED,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}
BRANCHES = 0.15
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "deepseek_v3": {**COMMON, **EXPERTS, **LATENT, "num_key_value_heads": 4},
    "glm4_moe": {**COMMON, **EXPERTS, "num_key_value_heads": 2, "head_dim": 8},
    "mellum": {**COMMON, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "sliding_window": 8, **MIXED},
}
MELLUM = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "post_norm": "norm"}


def build_mtp(folder, family, layers=1, seed=0, **overrides):
    """A random model with MTP layers, with tensor names of published checkpoints."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_layers import MtpModel

    config = AutoConfig.for_model(family, **FAMILIES[family], num_nextn_predict_layers=layers, **overrides)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float()
    mtp = MtpModel(model, layers).float()
    for weight in mtp.layers.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        # The next token depends mostly on the last one in both, so that drafts are often right.
        for name, weight in [*model.named_parameters(), *mtp.layers.named_parameters()]:
            if "o_proj" in name or "down_proj" in name:
                weight.mul_(BRANCHES)
        model.get_input_embeddings().weight.div_(0.3)
        for layer in mtp.layers:
            layer.eh_proj.weight.mul_(BRANCHES)[:, : config.hidden_size] += torch.eye(config.hidden_size)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in mtp.layers.state_dict().items():
        tensors |= stored(family, config.num_hidden_layers, name, tensor.clone())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def stored(family, above, name, tensor):
    number, _, name = name.partition(".")
    expert = re.fullmatch(r"mtp_block\.mlp\.experts\.(gate_up|down)_proj", name)
    if expert:
        found = {}
        for index, weight in enumerate(tensor):
            parts = zip(("gate", "up"), weight.chunk(2), strict=True) if expert[1] == "gate_up" else [("down", weight)]
            for part, rows in parts:
                named = f"mtp_block.mlp.experts.{index}.{part}_proj.weight"
                found |= stored(family, above, f"{number}.{named}", rows.contiguous())
        return found
    short = name.partition(".")[0]
    if family == "mellum":
        own = f"layers.{number}.{name.removeprefix('mtp_block.')}"
        return {f"mtp.{f'{MELLUM[short]}.weight' if short in MELLUM else own}": tensor}
    name = name.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm.")
    return {f"model.layers.{above + int(number)}.{name}": tensor}
