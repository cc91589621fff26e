"""A user's drafter: a class in a file, and arguments of its constructor."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.engine import Context, Drafter, TokenTree

CALLED = ("prepare", "fork", "begin", "propose", "observe", "end", "weights")
"""Methods of a drafter that the engine calls."""


def own(drafter: str, drafter_options: Mapping[str, Any] | None = None) -> Drafter:
    """An instance of the class ``drafter``, "path/to/file.py:Class", relative to the working folder.
    ``drafter_options`` are the arguments of its constructor.

    Raises ``UserError`` if there is no such drafter, or its code fails.
    """
    kind = load(drafter)
    _check_options(kind, drafter_options or {})
    with _located(_file(drafter), "drafter_options"):
        return _reporting(kind, _file(drafter))(**(drafter_options or {}))


@contextmanager
def _located(file: Path, key: str = "drafter") -> Iterator[None]:
    """Convert exceptions inside to ``UserError`` of the user's file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _user_error(error, file, key) from error


def _reporting(kind: type[Drafter], file: Path) -> type[Drafter]:
    """A subclass whose methods raise ``UserError`` for exceptions in the user's code."""

    def wrapped(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Drafter, *arguments: Any) -> Any:
            with _located(file):
                result = method(self, *arguments)
            if name == "propose" and not isinstance(result, TokenTree):
                reason = f"{file}: {kind.__name__}.propose must return a TokenTree, not {result!r:.80}"
                raise UserError(reason, key="drafter")
            return result

        return call

    def explained(tree: Any) -> Any:
        fault = isinstance(tree, Exception) and not isinstance(tree, UserError)
        return _user_error(tree, file, "drafter") if fault else tree

    def propose_all(cls: type[Drafter], drafts: Sequence[tuple[Any, Context, int]]) -> list[Any]:
        with _located(file):
            trees = super(subclass, cls).propose_all(drafts)
        return [explained(tree) for tree in trees]

    body: dict[str, Any] = {name: wrapped(name, getattr(kind, name)) for name in CALLED}
    body["unread_tokens"] = property(wrapped("unread_tokens", lambda self: super(subclass, self).unread_tokens))
    subclass: Any = type(kind.__name__, (kind,), {**body, "propose_all": classmethod(propose_all)})
    return subclass


def check(drafter: str, drafter_options: Mapping[str, Any] | None = None) -> None:
    """Raise ``UserError`` if ``own`` cannot be called with these arguments. Runs the file, but creates no drafter."""
    _check_options(load(drafter), drafter_options or {})


def load(drafter: str) -> type[Drafter]:
    """The class that "path/to/file.py:Class" names. A file is run once as long as it does not change."""
    file, name = _file(drafter), drafter.rpartition(":")[2]
    module = _module(file)
    kind = vars(module).get(name)
    if kind is None:
        drafters = [each for each, value in vars(module).items() if _is_drafter(value)]
        raise unknown(f"class in {file}:", name, drafters, key="drafter")
    if not _is_drafter(kind):
        raise UserError(f"{name} in {file} is not a Drafter: write class {name}(Drafter)", key="drafter")
    return kind


def _file(drafter: str) -> Path:
    path, _, name = drafter.rpartition(":")
    file = Path(path)
    if file.suffix != ".py" or not name.isidentifier():
        reason = f"drafter must be a file and a class in it, path/to/file.py:Class, not {drafter!r}"
        raise UserError(reason, key="drafter")
    if not file.is_file():
        raise UserError(f"drafter {drafter}: there is no file {file.absolute()}", key="drafter")
    return file


def _module(file: Path) -> ModuleType:
    source = file.read_bytes()
    content = hashlib.sha256(str(file.resolve()).encode() + source).hexdigest()
    name = f"_specdec_drafter_{content[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(file)
        # Dataclasses look up the module of a class in sys.modules.
        sys.modules[name] = module
        try:
            # An import would write byte code next to the user's file.
            exec(compile(source, str(file), "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _user_error(error, file, "drafter") from error
    return sys.modules[name]


def _is_drafter(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Drafter) and value is not Drafter


def _check_options(kind: type[Drafter], given: Mapping[str, Any]) -> None:
    known = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for key in given:
        if key not in known:
            raise unknown(f"option of {kind.__name__}", key, known, key="drafter_options")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL and key not in given:
            raise UserError(f"drafter {kind.__name__} needs {key}", key="drafter_options")


def _user_error(error: BaseException, file: Path, key: str) -> UserError:
    """A ``UserError`` with the line of the user's file."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    reason = error.msg if isinstance(error, SyntaxError) else error
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines = [error.lineno or 1]
    place = f"{file}:{lines[-1]}" if lines else str(file)
    return UserError(f"{place}: {type(error).__name__}: {reason}", key=key)
