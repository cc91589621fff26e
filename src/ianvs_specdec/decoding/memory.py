"""What a model or a drafter holds in memory, told apart from the rest of a process that has several."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_LEAVES: tuple[Any, ...] = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    FunctionType,
    BuiltinFunctionType,
    ModuleType,
    torch.dtype,
    weakref.ReferenceType,
    *weakref.ProxyTypes,
)


def held(*roots: Any, apart: Iterable[Any] = ()) -> int:
    """Bytes of all tensors and arrays that can be reached from ``roots``, each storage once, without passing through
    the objects in ``apart``.
    """
    seen = {id(item) for item in apart}
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
        else:
            stack += _parts(item)
    return sum(storages.values())


def _storage(tensor: torch.Tensor) -> dict[int, int]:
    try:
        storage = tensor.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    except (NotImplementedError, RuntimeError):  # oneDNN's own layouts have no storage that torch knows
        return {id(tensor): tensor.numel() * tensor.element_size()}


def _parts(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, MethodType):
        return [item.__self__]
    if isinstance(item, (list, tuple, set, frozenset)):
        return [] if item and isinstance(next(iter(item)), (int, float, str)) else list(item)
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [getattr(item, name, None) for name in slots if isinstance(name, str) and name != "__dict__"]
    return [*own, *getattr(item, "__dict__", {}).values()]
