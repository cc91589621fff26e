"""Hugging Face folders to export: small random models, and tokenizers of every kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.paths import EXAMPLE

CLOUD, EDGE = EXAMPLE / "models" / "cloud", EXAMPLE / "models" / "edge"
BASE: dict[str, Any] = {
    "vocab_size": 1056,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **values}}


def _rope_by_layer() -> dict[str, Any]:
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    }
    return {"rope_parameters": kinds}


_LONGROPE = {
    "original_max_position_embeddings": 256,
    "short_factor": [1.0 + i / 10 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
_LONG = {"max_position_embeddings": 512, "original_max_position_embeddings": 256}
_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 2}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "own head size": ("Llama", {"head_dim": 32}),
    "another theta": ("Llama", _rope("default")),
    "linear scaling": ("Llama", _rope("linear", factor=4.0)),
    "yarn": ("Llama", _rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama3 scaling": ("Llama", _rope("llama3", **_LLAMA3)),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": False}),
    "phi3": ("Phi3", _rope("default", partial_rotary_factor=0.5)),
    "phi3 longrope": ("Phi3", {**_LONG, **_rope("longrope", **_LONGROPE)}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 4.0,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 12, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**_EXPERTS, "norm_topk_prob": True, "head_dim": 32, "moe_intermediate_size": 64},
    ),
    # llama.cpp expects equal numbers of query and key heads.
    "olmoe": ("Olmoe", {**_EXPERTS, "num_key_value_heads": 4}),
    "gemma2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0}),
    "gemma3": ("Gemma3Text", {**_GEMMA, "layer_types": ["full_attention", "sliding_attention"], **_rope_by_layer()}),
}


def random_model(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Save a model with the cloud model's tokenizer; returns it."""
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**BASE, **own, **settings})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0, 0.15) if weights.dim() > 1 else weights.uniform_(0.5, 1.5)
    model = model.to(dtype)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(CLOUD / file, folder)
    return model


def change(folder: Path, file: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads((folder / file).read_text(encoding="utf-8"))
    edit(data)
    (folder / file).write_text(json.dumps(data), encoding="utf-8")


TEXTS = [
    *(EXAMPLE / "dataset" / "knowledge" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:100],
    *["na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \u0661\u0662 \u00bd \U0001f389 don't WE'LL\n\n\t x  y   z\r\n"] * 5,
]


def byte_level(pre: Any, *, ignore_merges: bool = False) -> Any:
    """A byte-level BPE tokenizer, trained on ``TEXTS``, that does ``pre`` before its merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|pad|>", "<|end|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def split_then_bytes(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def sentencepiece(*, prefix: bool) -> Any:
    """A tokenizer like Llama 2's: BPE over words that begin with U+2581, unknown characters as bytes."""
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if prefix else "never")
    words.train_from_iterator(TEXTS, trainer)
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    space = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space] if prefix else [space])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data, trained = json.loads(tokenizer.to_str()), json.loads(words.to_str())
    data["model"] |= {key: trained["model"][key] for key in ("vocab", "merges")}
    data["added_tokens"] = trained["added_tokens"][:3]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(data)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
