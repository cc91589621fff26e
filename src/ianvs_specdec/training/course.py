"""What every training here shares: its optimizers, the learning rate over the budget, checkpoints, finished folders."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from ianvs_specdec.common.progress import format_duration, print_line
from ianvs_specdec.common.storage.atomic import replace_folder, replacing, temporary_folder

CHECKPOINT_SECONDS = 60.0

WINDOW = 4
"""So many of the newest measurements of a loss are held against all before: one alone may be worse by chance."""

LEAST_GAIN = 0.03
"""A loss stands still that has fallen by less than this part of itself within the window."""


def optimizers(matrices: list[torch.nn.Parameter], others: Any) -> list[Optimizer]:
    """Muon for the matrices and AdamW for the ``others``, parameters or groups of them."""
    return [
        torch.optim.Muon(matrices, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw", ns_steps=4),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def compute_dtype(device: str) -> torch.dtype:
    """bf16, except on a CPU without instructions for it: its products are emulated there, slower than float32's."""
    quick = any(has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name)
    return torch.bfloat16 if quick or not device.startswith("cpu") else torch.float32


def autocast(device: str) -> torch.autocast:
    enabled = compute_dtype(device) is torch.bfloat16
    return torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=enabled)


def set_rate(used: Sequence[Optimizer], highest: float, progress: float, decay: float) -> None:
    """The learning rate at a part of the budget: a short warm-up, a plateau, a linear decay to zero. A group's
    ``factor`` is its rate relative to the others.
    """
    part = min(1.0, (progress + 1e-3) / 0.01) * min(1.0, max(0.0, (1.0 - progress) / decay))
    for optimizer in used:
        for group in optimizer.param_groups:
            group["lr"] = highest * group.get("factor", 1.0) * part


def stands_still(losses: Sequence[float]) -> bool:
    """Whether a loss that was measured so often, at equal distances, falls no more."""
    before, newest = losses[:-WINDOW], losses[-WINDOW:]
    return bool(before) and min(newest) > (1 - LEAST_GAIN) * min(before)


def left(state: dict[str, Any], progress: float) -> str:
    """How long it takes yet, at the pace so far: ``seconds`` for this part of the budget."""
    return format_duration(state["seconds"] * max(0.0, 1 / progress - 1)) if progress else "?"


def update(used: Sequence[Optimizer], parameters: Iterable[torch.nn.Parameter]) -> None:
    """One step along the gradients, which are clipped and then forgotten."""
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in used:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def save(work: Path, name: str, module: torch.nn.Module, used: Sequence[Optimizer], state: dict[str, Any]) -> None:
    """Write ``checkpoint.pt``, in which the module's weights are called ``name``, complete or not at all."""
    parts = {"state": state, name: module.state_dict(), "optimizers": [one.state_dict() for one in used]}
    with replacing(work / "checkpoint.pt") as temporary:
        torch.save(parts, temporary)


def saved(work: Path, device: str) -> dict[str, Any] | None:
    file = work / "checkpoint.pt"
    return torch.load(file, weights_only=True, map_location=device) if file.exists() else None


def restore(parts: dict[str, Any], name: str, module: torch.nn.Module, used: Sequence[Optimizer]) -> None:
    module.load_state_dict(parts[name])
    for optimizer, state in zip(used, parts["optimizers"], strict=True):
        optimizer.load_state_dict(state)


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A new folder, which takes the place of ``out`` when all is done, and is gone if anything fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(out) as temporary:
        yield temporary
        temporary.chmod(0o755)
        replace_folder(temporary, out)


def tell(line: str) -> None:
    """Print a line with the time of day, above the live line where there is one."""
    print_line(f"{time.strftime('%H:%M:%S')} {line}", sys.stdout)
