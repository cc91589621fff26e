"""The options of the vLLM back end, checked without vLLM."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from string import digits
from typing import Any

from ianvs_specdec.backends.base import check_threads
from ianvs_specdec.backends.prompts import check_model
from ianvs_specdec.common.errors import UserError, unknown

log = logging.getLogger(__name__)

COUNTS = ("tensor_parallel_size", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes")
TEXTS = ("vllm_python", "quantization")
MAPPINGS = ("speculative", "engine_args")
OPTIONS = (
    "dtype",
    "threads",
    *TEXTS,
    *COUNTS,
    "gpu_memory_utilization",
    "enforce_eager",
    "truncate_prompts",
    *MAPPINGS,
)
MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods whose ``model``, if any, is not a folder."""
METHODS = (*MODEL_FREE, "eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "mtp", "dflash", "dspark")
"""What ``method`` of ``speculative`` is in vLLM 0.32, without those that are for one family of models."""
SPECULATIVE = (
    "attention_backend",
    "code_revision",
    "disable_eagle_block_drop",
    "disable_padded_drafter_batch",
    "draft_load_config",
    "draft_sample_method",
    "draft_tensor_parallel_size",
    "dspark_draft_topk",
    "enable_adaptive_verification",
    "enforce_eager",
    "kv_cache_dtype",
    "max_model_len",
    "method",
    "model",
    "moe_backend",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "parallel_drafting",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "quantization",
    "rejection_sample_method",
    "revision",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_min_token_prob",
    "synthetic_acceptance_length",
    "synthetic_acceptance_rates",
    "tensor_parallel_size",
    "use_heterogeneous_vocab",
    "use_local_argmax_reduction",
)
"""Keys of vLLM 0.32's ``speculative_config`` that a user sets."""
MISSPELT = {"key": 0.9, "method": 0.8}
"""Names that are as alike as this are taken for one and the same, misspelt."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for a value of a simple option that cannot be one."""
    for name, value in options.items():
        if value is None:
            continue
        if name == "threads":
            check_threads(value)
        elif name in COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number from 1, not {value!r}", key=name)
        elif name == "gpu_memory_utilization":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise UserError(f"{name} must be a number above 0 and at most 1, not {value!r}", key=name)
        elif name == "enforce_eager":
            if not isinstance(value, bool):
                raise UserError(f"{name} must be true or false, not {value!r}", key=name)
        elif name in TEXTS:
            if not isinstance(value, str) or not value:
                raise UserError(f"{name} must be a text, not {value!r}", key=name)
        else:
            raise unknown("option of vllm", name, OPTIONS, key=name)


def checked_speculative(value: Any) -> dict[str, Any]:
    """vLLM's ``speculative_config``; empty without one. What only vLLM knows, it says itself when it loads."""
    if value is None:
        return {}
    key = "speculative"
    if not isinstance(value, Mapping):
        raise UserError(f"speculative must be a mapping, vLLM's speculative_config, not {value!r}", key=key)
    if not isinstance(value.get("method") or value.get("model"), str):
        raise UserError("speculative needs a method (such as ngram) or a model to draft with", key=key)
    for name in ("method", "model"):
        if not isinstance(value.get(name, ""), str):
            raise UserError(f"speculative.{name} must be a text, not {value[name]!r}", key=key)
    for name in value:
        _check_spelling("key", str(name), SPECULATIVE)
    if "method" in value:
        _check_spelling("method", value["method"], METHODS)
    drafts = value.get("num_speculative_tokens", 1)
    if isinstance(drafts, bool) or not isinstance(drafts, int) or drafts < 1:
        raise UserError(f"speculative.num_speculative_tokens must be a whole number from 1, not {drafts!r}", key=key)
    if "model" in value and value.get("method") not in MODEL_FREE:
        check_model(value["model"], key=key)
    return dict(value)


def checked_engine_args(value: Any) -> dict[str, Any]:
    """Engine arguments that are not options of their own; empty without any."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise UserError(
            f"engine_args must be a mapping, engine arguments of vLLM by name, not {value!r}", key="engine_args"
        )
    own = {"model": "model", "speculative_config": "speculative"} | {name: name for name in OPTIONS}
    for name in value:
        if name in own:
            raise UserError(f"engine_args may not hold {name}: that is the option {own[name]}", key="engine_args")
    return dict(value)


def _check_spelling(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise UserError for a name that is nearly a known one. Any other may be one of another version of vLLM, as a
    known name with another number may be.
    """
    if name in known:
        return
    kin = name.rstrip(digits) in {one.rstrip(digits) for one in known}
    if not kin and difflib.get_close_matches(name.lower(), known, n=1, cutoff=MISSPELT[kind]):
        raise unknown(f"{kind} in speculative", name, known, key="speculative")
    log.warning("speculative: the %s %r is not known here; whether vLLM knows it, it says when it loads", kind, name)
