"""Tiny random models of many architectures, random trees, and a drafter that is right at random."""

from __future__ import annotations

import random

import torch

from ianvs_specdec.engine import Context, Drafter, TokenTree

torch.set_num_threads(1)

VOCABULARY = 64
COMMON = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**COMMON, "num_key_value_heads": 2}
ARCHITECTURES = {
    "llama": ("llama", GROUPED),
    "qwen2": ("qwen2", GROUPED),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 8}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96}),
    "mistral": ("mistral", {**GROUPED, "sliding_window": None}),
    "llama-biased": ("llama", {**GROUPED, "attention_bias": True, "tie_word_embeddings": True}),
    "llama3-rope": (
        "llama",
        {
            **COMMON,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "mistral-sliding": ("mistral", {**GROUPED, "sliding_window": 8}),
    "gemma2": ("gemma2", {**GROUPED, "head_dim": 8, "sliding_window": 8}),
    "gemma3": (
        "gemma3_text",
        {**GROUPED, "head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": ("phi", COMMON),
    "gpt-neo-local": (
        "gpt_neo",
        {**COMMON, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    ),
    "phi3-longrope": (
        "phi3",
        {
            **GROUPED,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 24,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "factor": 128 / 24,
                "original_max_position_embeddings": 24,
                "short_factor": [1.0] * 4,
                "long_factor": [1.5, 3.0, 6.0, 9.0],
            },
        },
    ),
    "falcon-alibi": ("falcon", {**COMMON, "alibi": True}),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "mamba2": ("mamba2", {**COMMON, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}),
    "jamba-hybrid": (
        "jamba",
        {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1},
    ),
    "gpt-without-cache": ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96}),
}
FUSED = ("llama", "qwen2", "qwen3", "mistral", "llama-biased", "llama3-rope")
NATIVE = {*FUSED, "mistral-sliding", "gemma2", "gemma3", "phi3-longrope"}
ONE_FORWARD = {*FUSED, "gpt2", "mistral-sliding", "gemma2", "gemma3", "phi", "phi3-longrope"}


def tiny_model(name="llama", seed=0, **overrides):
    """A random float32 causal LM. Its weights are large enough that the next token depends on the context."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings = ARCHITECTURES[name]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = AutoConfig.for_model(
        model_type, **{"vocab_size": VOCABULARY, "initializer_range": 0.3, **special, **settings, **overrides}
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).float().eval()


def random_tree(rng, nodes):
    return TokenTree(
        [rng.randrange(3, VOCABULARY) for _ in range(nodes)], [-1, *(rng.randrange(i) for i in range(1, nodes))]
    )


class Guesser(Drafter):
    """Drafts random trees with one branch that follows a known continuation for a random number of tokens."""

    def __init__(self, continuation, seed=0, chains_only=False):
        self._continuation = list(continuation)
        self._rng = random.Random(seed)
        self._chains_only = chains_only

    def propose(self, context: Context, budget: int) -> TokenTree:
        done = len(context.tokens) - context.prompt_tokens
        right = self._continuation[done : done + self._rng.randrange(budget + 1)]
        wrong = [self._rng.randrange(3, VOCABULARY) for _ in range(budget - len(right))]
        if self._chains_only:
            return TokenTree.chain(context.tokens[-1], right + wrong)
        tree = TokenTree([context.tokens[-1]], [-1])
        tip = 0
        while right or wrong:
            follows = bool(right) and (not wrong or self._rng.random() < 0.5)
            tree.parents.append(tip if follows else self._rng.randrange(len(tree)))
            tree.tokens.append(right.pop(0) if follows else wrong.pop())
            tip = len(tree) - 1 if follows else tip
        return tree
