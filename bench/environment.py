"""What a measurement ran on, for its report."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Versions, processor, cores, and the threads and instructions that torch uses in this process."""
    import torch
    import transformers

    from ianvs_specdec.backends.local import instructions

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **instructions(),
    }


def _processor() -> str:
    """The processor's model name; on Linux ``platform.processor`` does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
