"""Memory of one model or drafter, in a process that has several."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

_LEAVES = (type, FunctionType, BuiltinFunctionType, ModuleType, weakref.ReferenceType, *weakref.ProxyTypes)
"""What is not followed: it leads everywhere."""
_PLAIN = (int, float, str, bytes)

SHARE_FOR_SEQUENCES = 0.5
"""Share of the memory that is free after loading: another model may follow, and steps need some."""

_MEMORY_GROUP = Path("/sys/fs/cgroup")
"""Of the process where it runs in a container: what limits the memory, by the files of Linux' control groups, version
2."""


def sequence_budget(device: torch.device) -> int | None:
    """Bytes for the keys and values of all sequences on ``device``; None if its free memory is unknown."""
    if device.type == "cuda":
        return int(SHARE_FOR_SEQUENCES * torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return None
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        # Pages of files are counted as used, and given up where they are needed.
        free = _numbers(Path("/proc/meminfo"))["MemAvailable:"] * 1024
        limit, used = (int((_MEMORY_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(0, limit - used + _numbers(_MEMORY_GROUP / "memory.stat")["inactive_file"]))
    except (OSError, KeyError, ValueError):
        pass  # another system, or a group without a limit
    return int(SHARE_FOR_SEQUENCES * free)


def _numbers(file: Path) -> dict[str, int]:
    """The numbers in a file of lines that are a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, file.read_text().splitlines())}


def tensor_bytes(*roots: Any, exclude: Iterable[Any] = ()) -> int:
    """Bytes of all tensors and arrays that can be reached from ``roots``, each storage once, without passing through
    the objects in ``exclude``. An object that holds memory of a library tells how much in ``library_bytes``.
    """
    seen = {id(item) for item in exclude}
    stack = list(roots)
    storages: dict[int, int] = {}
    while stack:
        item = stack.pop()
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages |= _storage(item)
        elif isinstance(item, np.ndarray):
            stack.append(item.base)
            of_another = isinstance(item.base, (np.ndarray, torch.Tensor))
            storages |= {} if of_another else {id(item): item.nbytes}
        elif isinstance(own := getattr(item, "library_bytes", None), int):
            storages[id(item)] = own
        elif not _lists_plain(item):
            stack += gc.get_referents(item)
    return sum(storages.values())


def _storage(tensor: torch.Tensor) -> dict[int, int]:
    try:
        storage = tensor.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    except (NotImplementedError, RuntimeError):  # oneDNN's own layouts have no storage that torch knows
        return {id(tensor): tensor.numel() * tensor.element_size()}


def _lists_plain(item: Any) -> bool:
    """Whether it is a collection of numbers or texts, which may be long, and holds nothing that is counted."""
    return isinstance(item, (list, tuple, set, frozenset)) and isinstance(next(iter(item), None), _PLAIN)
