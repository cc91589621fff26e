"""Back end ``vllm``: an engine of vLLM with any of its speculative methods, in its own process."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from string import digits
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ianvs_specdec.backends import process, prompts
from ianvs_specdec.backends.base import DType, Threads, Truncate
from ianvs_specdec.backends.process import WorkerProcess
from ianvs_specdec.backends.prompts import local_folder, model_digest, model_folder
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.backends.untrusted import MAX_DRAFT_TOKENS, MAX_TOKENS, bounded_int, bounded_list
from ianvs_specdec.backends.worker_model import WorkerLLM
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Count, Settings, Text, validator
from ianvs_specdec.common.types import Sampling, Step
from ianvs_specdec.models.loading import check_stored
from ianvs_specdec.models.validation import check_model
from ianvs_specdec.records.identity import FileDigests

log = logging.getLogger(__name__)

WORKER = Path(__file__).with_name("worker.py")
HINTS = {
    "max seq len": "set kv_cache_memory_bytes higher or max_model_len lower",
    "memory for the cache blocks": "set kv_cache_memory_bytes higher or max_model_len lower",
    "out of memory": "set gpu_memory_utilization, max_num_seqs or max_model_len lower, or quantization",
    "arctic_inference": "suffix decoding needs the package arctic-inference beside vLLM",
}
"""Part of an error's text -> advice."""
READY = {"max_model_len", "memory", "cpu"}
SAMPLED_DRAFTS = (
    "vLLM's CPU build does not sample with drafts correctly (vLLM issue 55005: what its sampler for drafts decides is "
    "dropped): use temperature 0, or leave speculative out, or run vLLM on a GPU"
)
_OTHERS = ("vllm_python", "dtype", "threads", "truncate_prompts", "speculative", "engine_args")
"""Options that are not passed on as engine arguments."""


MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods whose ``model``, if any, is not a folder."""
METHODS = (*MODEL_FREE, "eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "mtp", "dflash", "dspark")
"""Methods of vLLM 0.32 that are not for one family of models."""
SPECULATIVE = (
    *("attention_backend", "code_revision", "disable_eagle_block_drop", "disable_padded_drafter_batch"),
    *("draft_load_config", "draft_sample_method", "draft_tensor_parallel_size", "dspark_draft_topk"),
    *("enable_adaptive_verification", "enforce_eager", "kv_cache_dtype", "max_model_len", "method", "model"),
    *("moe_backend", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting"),
    *("prompt_lookup_max", "prompt_lookup_min", "quantization", "rejection_sample_method", "revision"),
    *("suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth"),
    *("suffix_decoding_min_token_prob", "synthetic_acceptance_length", "synthetic_acceptance_rates"),
    *("tensor_parallel_size", "use_heterogeneous_vocab", "use_local_argmax_reduction"),
)
"""Keys of ``speculative_config`` in vLLM 0.32 that users set."""
MISSPELT = {"key": 0.9, "method": 0.8}
"""Similarity from which an unknown name counts as misspelt."""


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
    if type(drafts) is not int or drafts < 1:
        raise UserError(f"speculative.num_speculative_tokens must be a whole number from 1, not {drafts!r}", key=key)
    if "model" in value and value.get("method") not in MODEL_FREE:
        prompts.check_model(value["model"], key=key)


def _check_spelling(kind: str, name: str, known: Collection[str]) -> None:
    """Raise UserError for a misspelt name. Other unknown names may be of another version of vLLM, and names that differ
    from a known one in a number, too."""
    if name in known:
        return
    variant = name.rstrip(digits) in {one.rstrip(digits) for one in known}
    if not variant and difflib.get_close_matches(name.lower(), known, n=1, cutoff=MISSPELT[kind]):
        raise unknown(f"{kind} in speculative", name, known, key="speculative")
    log.warning("speculative: the %s %r is not known here; vLLM checks it when it loads", kind, name)


def _check_engine_args(value: Mapping[str, Any]) -> None:
    own = {"model": "model", "speculative_config": "speculative"} | {name: name for name in VllmOptions.model_fields}
    for name in value:
        if name in own:
            raise UserError(f"engine_args may not hold {name}: that is the option {own[name]}", key="engine_args")


class VllmOptions(Settings):
    """Options of ``vllm``, which checks the rest itself when it loads."""

    dtype: DType = Field("auto", description="the type of the weights; auto = as stored")
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


def environment(threads: int | None) -> dict[str, str]:
    """As ``process.environment``, without usage reports."""
    kept = process.environment(threads) | {"VLLM_NO_USAGE_STATS": "1"}
    # By default vLLM binds one thread to each core, whatever the number of threads.
    return kept if threads is None else kept | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def steps_of(received: Sequence[int], kept: Sequence[int], drafts: Any) -> list[Step]:
    """See ``WorkerLLM.steps``; ``drafts`` are vLLM's pairs (drafted, accepted).

    The first chunk is the prefill's. The last one may lack tokens after the end of the output, and pairs of later steps
    are omitted. Empty if chunks and pairs do not match.
    """
    steps: list[Step] = []
    waiting = [
        (bounded_int(drafted, "a draft", MAX_DRAFT_TOKENS), bounded_int(accepted, "what a draft gave", drafted))
        for drafted, accepted in bounded_list(drafts, "drafts", MAX_TOKENS)
    ]
    for index in range(1, len(received)):
        accepted = received[index] - 1
        last = index == len(received) - 1
        if waiting and (waiting[0][1] == accepted or (last and waiting[0][1] > accepted)):
            pair = waiting.pop(0)
            steps.append(Step(pair[0], pair[1], kept[index], pair[0] + 1))
        elif accepted == 0:
            steps.append(Step(0, 0, kept[index], 1))
        else:
            return []
    return steps


class VllmLLM(WorkerLLM):
    """A model in an engine of vLLM, which batches concurrent requests.

    ``speculative`` is vLLM's ``speculative_config``, in which ``model`` may be a relative folder. On a CPU the defaults
    are ``enforce_eager: true`` and ``kv_cache_memory_bytes: 256 MiB``.

    A step of the trace is an engine step after the prefill. vLLM reports drafted and accepted tokens of steps with a
    draft in order, but not which steps these are. A pair is assigned to the earliest step that it fits, so sums are
    exact.

    The baseline is vLLM without ``speculative``. With ``logprobs``, vLLM returns the ``TOP`` likeliest tokens, so the
    entropy is approximate (see ``top_logprobs``).
    """

    package: ClassVar[str] = "vLLM"
    python_option: ClassVar[str] = "vllm_python"
    required: ClassVar[tuple[str, ...]] = ("vllm",)

    backend: ClassVar[str] = "vllm"
    local: ClassVar[bool] = True
    concurrent: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = VllmOptions
    steps = staticmethod(steps_of)

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        if self.options.vllm_python is not None:
            self.python()
        self.speculative, self.engine_args = self.options.speculative or {}, self.options.engine_args or {}
        self.speculates = bool(self.speculative)
        self.simple = {name: value for name, value in self.options.given().items() if name not in _OTHERS}
        """Options passed on as engine arguments."""

    @property
    def method(self) -> str:
        """The speculative method, the name of the draft's folder without one, or ``none``."""
        return str(self.speculative.get("method") or Path(self.speculative.get("model", "none")).name)

    def _script(self) -> list[str]:
        return [str(WORKER)]

    def check(self, sampling: Sampling) -> None:
        if self.speculative and not sampling.greedy and self.versions().get("cpu"):
            raise UserError(SAMPLED_DRAFTS, key="temperature")

    def check_files(self) -> None:
        folder = local_folder(self.model)
        if folder is not None and "load_format" not in self.engine_args:
            check_model(folder, what=f"the model {self.model}", key="model", vllm=True)

    def lossy(self, sampling: Sampling) -> bool:
        return self.speculative.get("rejection_sample_method") == "synthetic"

    def _draft(self) -> str | None:
        """Folder or hub name of the draft model or head, None without one."""
        model: str | None = self.speculative.get("model")
        return None if self.speculative.get("method") in MODEL_FREE else model

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        draft = self._draft()
        # Other loaders may read other files.
        more = ("*",) if "load_format" in self.engine_args else ()
        contents = {} if draft is None else {"model": digests.path(model_folder(draft, key="speculative"))}
        return {
            "backend": self.backend,
            "method": self.method,
            "vllm": str(self.versions()["vllm"]),
            "options": {**self.simple, **({"engine_args": self.engine_args} if self.engine_args else {})},
            "speculative": {**self.speculative, **contents},
            "model": model_digest(self.model, digests, *more),
            "dtype": self.options.dtype,
            "threads": self.options.threads,
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        return {**self.identity(digests), "method": "none", "speculative": {}}

    def _start(self, folder: Path) -> WorkerProcess:
        if "load_format" not in self.engine_args:
            check_stored(folder, what=f"the model {self.model}", key="model")
        versions, variables = self.versions(), environment(self.options.threads)
        worker = WorkerProcess(self.package, self.command(), self._arguments(folder), variables, HINTS)
        if lacking := READY - worker.ready.keys():
            worker.close()
            raise UserError(f"the vLLM process does not report that it is ready: no {', '.join(sorted(lacking))}")
        # Where it really runs.
        self._versions = {**versions, "cpu": bool(worker.ready["cpu"])}
        return worker

    def _window(self, worker: WorkerProcess) -> int:
        window: int = worker.ready["max_model_len"]
        return window

    def _arguments(self, folder: Path) -> dict[str, Any]:
        own = {"model": str(folder.absolute()), "dtype": self.options.dtype, "trust_remote_code": False}
        arguments = {**own, **self.simple, **self.engine_args}
        if self.speculative:
            draft = self._draft()
            place = {} if draft is None else {"model": str(model_folder(draft, key="speculative").absolute())}
            arguments["speculative_config"] = {**self.speculative, **place}
        return arguments

    def _request(self, sampling: Sampling, room: int) -> dict[str, Any]:
        return {
            "max_tokens": (most := min(sampling.max_tokens, room)),
            "min_tokens": min(sampling.min_tokens, most),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": [] if sampling.ignore_eos else self._eos_ids,
            **({} if sampling.greedy else {"seed": sampling.seed}),
            **({"logprobs": TOP} if sampling.logprobs else {}),
        }

    def target(self) -> str:
        return "vllm"

    def hardware(self) -> Mapping[str, Any]:
        return {**super().hardware(), **self._reported("device", "threads", "instructions", "vllm", "torch")}
