"""Import of plugin files under private names.

Ianvs adds a plugin's folder to ``sys.path`` and imports the file name: of two folders with a ``model.py``, only the
first is imported. Here every folder is a private package. Its modules have a private ``__builtins__``, whose
``__import__`` and ``importlib.import_module`` search the folder first.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from core.common.errors import PLUGIN_ERRORS, explain, hint, short_path
from core.common.section import Section
from sedna.common.class_factory import PLUGIN_MARK, ClassFactory, ClassType

_PREFIX = "_ianvs_plugin_"
_RESERVED = frozenset({"core", "sedna"})  # always the host's packages


class PluginError(Exception):
    """A plugin file or alias that cannot be used. The message has no place in the YAML file."""


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        root = module.__name__.partition(".")[0]
        module.__dict__["__builtins__"] = _builtins_of(root)
        module.__dict__[PLUGIN_MARK] = root
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType | None:
        # Write no byte code next to the user's files.
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder:
    """Entry of ``sys.meta_path`` that loads modules of plugin folders with ``_Loader``."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


@functools.cache
def _builtins_of(root: str) -> dict[str, Any]:
    return {**vars(builtins), "__import__": _import_for(root)}


def _import_for(root: str) -> Any:
    private_importlib = ModuleType("importlib", importlib.__doc__)

    def import_module(name: str, package: str | None = None) -> ModuleType:
        inside = not name.startswith(".") and is_sibling(name.partition(".")[0])
        return importlib.import_module(f"{root}.{name}" if inside else name, package)

    vars(private_importlib).update(import_module=import_module, __getattr__=functools.partial(getattr, importlib))

    @functools.cache
    def is_sibling(head: str) -> bool:
        if head in _RESERVED or head in sys.builtin_module_names:
            return False
        spec = PathFinder.find_spec(head, list(sys.modules[root].__path__))
        # An installed package has precedence over a folder without __init__.py, as on sys.path.
        return spec is not None and (spec.loader is not None or importlib.util.find_spec(head) is None)

    def private_import(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        head = name.partition(".")[0]
        if not level and head == "importlib" and (name == head or not fromlist):
            builtins.__import__(name, globals, locals, fromlist or (), 0)
            return private_importlib
        if level or not is_sibling(head):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(f"{root}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{root}.{name}")
        return sys.modules[f"{root}.{head}"]

    return private_import


def _package_of(folder: str) -> str:
    root = _PREFIX + hashlib.sha256(os.path.normcase(os.path.realpath(folder)).encode()).hexdigest()[:12]
    if root not in sys.modules:
        spec = ModuleSpec(root, None, is_package=True)
        spec.submodule_search_locations = [folder]
        sys.modules[root] = importlib.util.module_from_spec(spec)
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
    return root


def import_plugin(url: str, at: Section) -> str | None:
    """Import the plugin file of the key ``url`` of a section. The module name, or None with an error in
    ``problems``."""
    file = at.find(url, "url")
    try:
        return _load(file) if file is not None else None
    except PluginError as error:
        at.add(str(error), "url")
    except PLUGIN_ERRORS as error:
        at.add(f"{short_path(file or url)} cannot be imported: {explain(error)}", "url")
    return None


def resolve_alias(kind: str, name: str, url: str, at: Section) -> Any | None:
    """The class or function that the file ``url`` registers as ``name``, or None with an error in ``problems``."""
    module = import_plugin(url, at)
    try:
        return _find(kind, name, module, url) if module is not None else None
    except PluginError as error:
        at.add(str(error), "name")
        return None


def _load(file: str) -> str:
    """Import a plugin file or package folder. Returns the private module name; exceptions of the plugin pass
    through."""
    folder, base = os.path.split(os.path.abspath(file))
    stem, extension = os.path.splitext(base)
    if os.path.isdir(file):
        stem, extension = base, ".py"
    if extension != ".py" or "." in stem:
        raise PluginError(f"{file} is not a Python file with a plain name")
    importlib.invalidate_caches()
    name = f"{_package_of(folder)}.{stem}"
    importlib.import_module(name)
    return name


def _find(type_name: str, alias: str, module: str, file: str) -> Any:
    """The class or function registered by a plugin module, else by its folder, else by installed libraries. Raises
    PluginError if none or several are."""
    root = module.partition(".")[0]
    found = ClassFactory.registrations(type_name, alias)
    for tier in (
        [r for r in found if module in (r.owner, r.module)],
        [r for r in found if r.owner.partition(".")[0] == root],
        [r for r in found if not r.module.startswith(_PREFIX)][-1:],
    ):
        distinct = {id(r.cls): r for r in tier}
        if len(distinct) > 1:
            places = " and ".join(f"{short_path(r.file)}:{r.line}" for r in distinct.values())
            raise PluginError(f"the alias {alias!r} is registered twice: at {places}. Rename one of them")
        if tier:
            return tier[0].cls
    words = {value: word for word, value in vars(ClassType).items() if isinstance(value, str)}
    names = []
    for kind, name, r in ClassFactory.everything():
        if root not in (r.owner.partition(".")[0], r.module.partition(".")[0]):
            continue
        if name == alias:
            wanted, given = f"ClassType.{words.get(type_name)}", f"ClassType.{words.get(kind, kind)}"
            raise PluginError(f"{alias!r} in {file} is registered as {given}, but this needs {wanted}")
        names += [name] if kind == type_name else []
    raise PluginError(f"{file} registers nothing as {alias!r}.{hint(alias, names, 'Registered there')}")
