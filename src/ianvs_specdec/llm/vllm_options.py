"""The options of the vLLM back end, checked without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.llm.prompts import check_model

COUNTS = ("threads", "tensor_parallel_size", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes")
TEXTS = ("vllm_python", "quantization")
MAPPINGS = ("speculative", "engine_args")
OPTIONS = ("dtype", *TEXTS, *COUNTS, "gpu_memory_utilization", "enforce_eager", *MAPPINGS)
MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods whose ``model``, if any, is not a folder."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for a value of a simple option that cannot be one."""
    for name, value in options.items():
        if value is None:
            continue
        if name in COUNTS:
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
