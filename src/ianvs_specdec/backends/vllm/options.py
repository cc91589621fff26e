"""The options of the vLLM back end, checked without vLLM."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from string import digits
from typing import Annotated, Any

from pydantic import Field

from ianvs_specdec.backends.base import DType, Threads, Truncate
from ianvs_specdec.backends.prompts import check_model
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Count, Settings, Text, validator

log = logging.getLogger(__name__)

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


def _check_speculative(value: Mapping[str, Any]) -> None:
    key = "speculative"
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


def _check_engine_args(value: Mapping[str, Any]) -> None:
    own = {"model": "model", "speculative_config": "speculative"} | {name: name for name in VllmOptions.model_fields}
    for name in value:
        if name in own:
            raise UserError(f"engine_args may not hold {name}: that is the option {own[name]}", key="engine_args")


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


class VllmOptions(Settings):
    """The options of ``vllm``. What only vLLM knows, it says itself when it loads."""

    dtype: DType = Field("auto", description="the type of the weights; auto = the one that they are stored in")
    threads: Threads | None = None
    vllm_python: Text | None = Field(
        None, description="the Python that has vLLM: a path, a program, or an environment variable that holds one"
    )
    quantization: Text | None = Field(None, description="vLLM's quantization")
    tensor_parallel_size: Count | None = Field(None, description="GPUs that share the model")
    max_model_len: Count | None = Field(None, description="the context window, in tokens")
    max_num_seqs: Count | None = Field(None, description="requests that share a step")
    kv_cache_memory_bytes: Count | None = Field(None, description="the cache of a GPU, in bytes")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="the share of a GPU's memory that vLLM takes"
    )
    enforce_eager: bool | None = Field(None, description="no CUDA graphs")
    truncate_prompts: Truncate = False
    speculative: Annotated[dict[str, Any], validator(_check_speculative)] | None = Field(
        None, description="vLLM's speculative_config"
    )
    engine_args: Annotated[dict[str, Any], validator(_check_engine_args)] | None = Field(
        None, description="further engine arguments of vLLM by name"
    )
