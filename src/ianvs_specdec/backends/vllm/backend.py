"""vLLM as a back end: its engine with continuous batching and any of its ways to speculate, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.backends import process
from ianvs_specdec.backends.process import WorkerProcess, missing, python_of
from ianvs_specdec.backends.prompts import local_folder, model_digest, model_folder
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.backends.untrusted import MAX_DRAFT_TOKENS, MAX_TOKENS, bounded_int, bounded_list
from ianvs_specdec.backends.vllm.options import MODEL_FREE, VllmOptions
from ianvs_specdec.backends.worker_model import WorkerLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings
from ianvs_specdec.common.types import Sampling, Step
from ianvs_specdec.models.layout import check_model
from ianvs_specdec.models.loading import check_stored
from ianvs_specdec.records.identity import FileDigests

NAME, KEY = "vLLM", "vllm_python"
WORKER = Path(__file__).with_name("worker.py")
HINTS = {
    "max seq len": "set kv_cache_memory_bytes higher or max_model_len lower",
    "memory for the cache blocks": "set kv_cache_memory_bytes higher or max_model_len lower",
    "out of memory": "set gpu_memory_utilization, max_num_seqs or max_model_len lower, or quantization",
    "arctic_inference": "suffix decoding needs the package arctic-inference beside vLLM",
}
"""What to do about errors whose own text does not say it."""
READY = {"max_model_len", "memory", "cpu"}
SAMPLED_DRAFTS = (
    "vLLM's CPU build does not sample with drafts correctly (vLLM issue 55005: what its sampler for drafts decides is "
    "dropped): use temperature 0, or leave speculative out, or run vLLM on a GPU"
)
_OTHERS = ("vllm_python", "dtype", "threads", "truncate_prompts", "speculative", "engine_args")
"""Options that are no engine arguments, or are set apart."""


def environment(threads: int | None) -> dict[str, str]:
    """Usage reports go nowhere."""
    kept = process.environment(threads) | {"VLLM_NO_USAGE_STATS": "1"}
    # Left alone, vLLM binds one thread to each core, whatever number is asked for.
    return kept if threads is None else kept | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def steps_of(received: Sequence[int], kept: Sequence[int], drafts: Any) -> list[Step]:
    """The verification steps of a request from the token counts of its chunks and vLLM's pairs (drafted, accepted).

    ``received`` counts the tokens of each engine step, the prefill's first; ``kept`` those of them that belong to the
    output. The last chunk may have lost tokens after the one that ended the output, in vLLM or here. Pairs of steps
    that came after it are left out. Empty where chunks and pairs do not belong together. Raises ValueError or TypeError
    for pairs that cannot be.
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
    """A model behind an engine of vLLM; requests from many threads run in one batch.

    Nothing of ours has to be installed in the Python that has vLLM. ``speculative`` is vLLM's ``speculative_config``,
    passed on as it is but for ``model``, which may be a folder relative to the working directory or a name on the hub.
    On a CPU, ``enforce_eager`` is true and ``kv_cache_memory_bytes`` 256 MiB unless given.

    A step of the trace is one engine step after the prefill; vLLM reports the drafted and accepted tokens of those that
    verified a draft, in order, but not which these were. Where that leaves a choice (a step of one token may have had
    its draft rejected, or none), the earliest that fits is taken, so sums are vLLM's own and only the position can be
    off.

    Lossless and Speedup compare with vLLM without ``speculative``, not with our engine. With ``logprobs``, vLLM tells
    the ``TOP`` likeliest tokens, so that the entropy is approximate (see ``top_logprobs``).
    """

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
        """The options that are engine arguments."""
        self._found: tuple[str, bool] | None = None

    @property
    def method(self) -> str:
        """How vLLM drafts: the method's name, that of the draft's folder where vLLM is to find out, or ``none``."""
        return str(self.speculative.get("method") or Path(self.speculative.get("model", "none")).name)

    def python(self) -> str:
        """The program that ``vllm_python`` means. Raises UserError where it means none."""
        return python_of(self.options.vllm_python, KEY, NAME)

    def _vllm(self) -> tuple[str, bool]:
        """vLLM's version, and whether it is a build for CPUs. Raises UserError where its Python has no vLLM."""
        if self._found is None:
            found = process.probe([self.python(), str(WORKER)], KEY, NAME)
            if found.get("vllm") is None:
                raise missing(self.python(), KEY, NAME, "vllm")
            self._found = str(found["vllm"]), bool(found.get("cpu"))
        return self._found

    def check(self, sampling: Sampling) -> None:
        if self.speculative and not sampling.greedy and self._vllm()[1]:
            raise UserError(SAMPLED_DRAFTS, key="temperature")

    def check_files(self) -> None:
        folder = local_folder(self.model)
        if folder is not None and "load_format" not in self.engine_args:
            check_model(folder, what=f"the model {self.model}", key="model", vllm=True)

    def lossy(self, sampling: Sampling) -> bool:
        return self.speculative.get("rejection_sample_method") == "synthetic"

    def _draft(self) -> str | None:
        """The folder or hub name of what drafts, where the method has one."""
        model: str | None = self.speculative.get("model")
        return None if self.speculative.get("method") in MODEL_FREE else model

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        draft = self._draft()
        # Which weights another loader takes is its own affair.
        more = ("*",) if "load_format" in self.engine_args else ()
        contents = {} if draft is None else {"model": digests.path(model_folder(draft, key="speculative"))}
        return {
            "backend": self.backend,
            "method": self.method,
            "vllm": self._vllm()[0],
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
        version, _ = self._vllm()
        command, threads = [self.python(), str(WORKER)], self.options.threads
        worker = WorkerProcess(NAME, command, self._arguments(folder), environment(threads), HINTS)
        if lacking := READY - worker.ready.keys():
            worker.close()
            raise UserError(f"the vLLM process does not report that it is ready: no {', '.join(sorted(lacking))}")
        # What it runs on, rather than what the package's name says.
        self._found = (version, bool(worker.ready["cpu"]))
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
