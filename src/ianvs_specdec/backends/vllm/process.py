"""What is vLLM's own about its process: the worker, its surroundings, and hints at what helps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.backends import process
from ianvs_specdec.backends.process import WorkerProcess, missing
from ianvs_specdec.common.errors import UserError

NAME, KEY = "vLLM", "vllm_python"
WORKER = Path(__file__).with_name("worker.py")
HINTS = {
    "max seq len": "set kv_cache_memory_bytes higher or max_model_len lower",
    "memory for the cache blocks": "set kv_cache_memory_bytes higher or max_model_len lower",
    "out of memory": "set gpu_memory_utilization, max_num_seqs or max_model_len lower, or quantization",
    "arctic_inference": "suffix decoding needs the package arctic-inference beside vLLM",
}
"""What to do about errors whose own text does not say it."""


def probe(python: str) -> tuple[str, bool]:
    """vLLM's version in the environment of ``python``, and whether it is a build for CPUs. Imports nothing heavy there.

    Raises UserError where there is no such Python, or no vLLM in it.
    """
    found = process.probe([python, str(WORKER)], KEY, NAME)
    if found.get("vllm") is None:
        raise missing(python, KEY, NAME, "vllm")
    return str(found["vllm"]), bool(found.get("cpu"))


def environment(threads: int | None) -> dict[str, str]:
    """Usage reports go nowhere."""
    kept = process.environment(threads) | {"VLLM_NO_USAGE_STATS": "1"}
    # Left alone, vLLM binds one thread to each core, whatever number is asked for.
    return kept if threads is None else kept | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def start(python: str, arguments: Mapping[str, Any], threads: int | None) -> WorkerProcess:
    """One engine with the given engine arguments."""
    engine = WorkerProcess(NAME, [python, str(WORKER)], arguments, environment(threads), HINTS)
    if missing_facts := {"max_model_len", "memory", "cpu"} - engine.ready.keys():
        engine.close()
        raise UserError(f"the vLLM process does not say that it is ready: no {', '.join(sorted(missing_facts))}")
    return engine
