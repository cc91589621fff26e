"""EAGLE heads of random numbers in all kinds, a target for them, and what they make it verify."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.targets.native import library
from tests.drafters.eagle_oracle import CONFIG, VOCABULARY, random_tensors, save
from tests.support.requests import decoded
from tests.support.tiny import tiny_model

PROMPT = [5, 9, 14, 3, 22, 9, 14, 3]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
HEADS = {
    "eagle": (False, {}),
    "eagle-plain": (False, {"bias": False, "num_key_value_heads": 4}),
    "eagle-biased": (False, {"qkv_bias": True, "rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "eagle3": (True, {"draft_vocab_size": 15}),
    "eagle3-whole": (True, {"qkv_bias": True}),
    "eagle-frequent": (False, {"frequent": [3, 22, 9, 14, 7, 1, 0, 19]}),
    "eagle3.1": (True, {"fc_norm": True, "norm_output": True, "mlp_bias": True}),
    "speculators": (
        True,
        {
            "speculators_model_type": "eagle3",
            "model_type": "llama",
            "draft_vocab_size": 15,
            **dict.fromkeys(("norm_before_residual", "norm_before_fc", "norm_output"), True),
            "layer_types": ["sliding_attention"],
            "sliding_window": 3,
        },
    ),
    "speculators-qwen3": (
        True,
        {
            "speculators_model_type": "eagle3",
            "model_type": "qwen3",
            "norm_before_residual": True,
            "fc_norm": True,
            "attention_bias": True,
            "eagle_aux_hidden_state_layer_ids": [4, 1],
        },
    ),
    "eagle3-layers": (True, {"attention_bias": True, "eagle_aux_hidden_state_layer_ids": [5, 0, 6, 2]}),
}


WITHOUT = library.why_not()
NATIVE = pytest.param("native", marks=pytest.mark.skipif(WITHOUT is not None, reason=WITHOUT or ""))
ENGINES = ["torch", NATIVE]
"""What computes target and head."""


def wide(name="llama", layers=7, **overrides):
    return tiny_model(name, num_hidden_layers=layers, vocab_size=VOCABULARY, initializer_range=0.15, **overrides)


def save_heads(root):
    """Every head of ``HEADS`` in a folder of its name."""
    for label, (eagle3, changes) in HEADS.items():
        config = {**CONFIG, **changes}
        save(root / label, random_tensors(config, eagle3), config)
    return root


def run(target, drafter, prompt=PROMPT, length="full", rule="rejection", eos=(), **sampling):
    """Every verified tree with the text up to its root, and what was decoded."""
    trees: list[TokenTree] = []
    sampling = Sampling(**{"max_tokens": 16, **sampling})
    result = decoded(target, drafter, length, prompt, sampling, eos_ids=eos, trace_trees=trees, rule=rule)
    texts, text = [], [*prompt, result.token_ids[0]]
    for step in result.trace.steps:
        texts.append(list(text))
        text += result.token_ids[len(text) - len(prompt) :][: step.emitted]
    return list(zip(texts, trees, strict=True)), result
