"""Registry of the classes and metric functions of plugin files, by type and alias.

Sedna stores one class per alias, so a second plugin folder silently overrides the first. Here every registration
records its plugin folder, and a look-up from a folder prefers the folder's own class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isclass, isfunction
from typing import Any, TypeVar

PLUGIN_MARK = "__ianvs_plugin__"
"""Global variable of plugin modules, set by the host's loader: the private package name of the plugin's folder."""

T = TypeVar("T")


class ClassType:
    """Types of registered classes: GENERAL for models, dataset processors and metrics, HEM for routers."""

    GENERAL = "general"
    HEM = "hard_example_mining"
    FL_AGG = "aggregation"
    MTL = "multi_task_learening"
    UTD = "unseen_task_detect"
    OF = "optical_flow"
    ALGORITHM = "algorithm"
    DATASET = "data_process"
    CALLBACK = "post_process_callback"
    UTP = "unseen_task_processing"
    KM = "knowledge_management"
    STP = "seen_task_processing"


@dataclass(frozen=True)
class Registration:
    """A registered class, the place of the call, and the plugin module that ran it (``owner``, empty if none)."""

    cls: Any
    module: str
    owner: str
    file: str
    line: int


def _caller() -> tuple[str, str, str, int]:
    """Module, owning plugin module, file and line of the caller of this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    file, line, module = frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__", ""))
    plugin: Any = frame
    while plugin is not None and PLUGIN_MARK not in plugin.f_globals:
        plugin = plugin.f_back
    return module, str(plugin.f_globals["__name__"]) if plugin is not None else "", file, line


class ClassFactory:
    _registry: dict[str, dict[str, list[Registration]]] = {}  # noqa: RUF012 - one registry per process, as in Sedna

    @classmethod
    def register(cls, type_name: str = ClassType.GENERAL, alias: str | None = None) -> Callable[[T], T]:
        """Decorator that registers a class or function under ``alias`` (default: its name)."""
        module, owner, file, line = _caller()

        def wrapper(t_cls: T) -> T:
            name = alias if alias is not None else t_cls.__name__  # type: ignore[attr-defined]
            entries = cls._registry.setdefault(type_name, {}).setdefault(name, [])
            entries.append(Registration(t_cls, module, owner, file, line))
            return t_cls

        return wrapper

    @classmethod
    def register_cls(cls, t_cls: T, type_name: str = ClassType.GENERAL, alias: str | None = None) -> T:
        return cls.register(type_name, alias)(t_cls)

    @classmethod
    def register_from_package(cls, package: Any, type_name: str = ClassType.GENERAL) -> None:
        for name in dir(package):
            value = getattr(package, name)
            if not name.startswith("_") and (isclass(value) or isfunction(value)):
                cls.register_cls(value, type_name)

    @classmethod
    def registrations(cls, type_name: str, alias: str) -> list[Registration]:
        return list(cls._registry.get(type_name, {}).get(alias, ()))

    @classmethod
    def everything(cls) -> list[tuple[str, str, Registration]]:
        return [(t, a, r) for t, names in cls._registry.items() for a, entries in names.items() for r in entries]

    @classmethod
    def is_exists(cls, type_name: str, cls_name: str | None = None) -> bool:
        names = cls._registry.get(type_name)
        return names is not None and (cls_name is None or cls_name in names)

    @classmethod
    def get_cls(cls, type_name: str, t_cls_name: str | None = None) -> Any:
        """The class of an alias: that of the calling plugin folder, else the latest. ValueError if none."""
        found = cls.registrations(type_name, t_cls_name or "")
        if not found:
            raise ValueError(f"no class is registered as {t_cls_name!r} of type {type_name!r}")
        folder = _caller()[1].rpartition(".")[0]
        own = [r for r in found if folder and r.owner.rpartition(".")[0] == folder]
        return (own or found)[-1].cls
