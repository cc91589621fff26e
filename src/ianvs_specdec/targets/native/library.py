"""The library of the native step: which one is loaded, or why there is none."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from ianvs_specdec.targets.native import interface
from ianvs_specdec.targets.native.build import (
    GENERIC,
    LIBRARIES,
    PROCESSOR,
    REASON,
    fingerprint,
    library_name,
    runnable,
)

_FOLDER = Path(__file__).resolve().parent / LIBRARIES
_AGAIN = "install the package again"


class Unavailable(Exception):
    """There is no library that could be called; ``str()`` is the reason and what to do."""


@functools.cache
def load(variant: str | None = None) -> ctypes.CDLL:
    """The library for an instruction set, the best that this processor has where none is named.

    Raises ``Unavailable``.
    """
    if variant is None:
        variant = best()
    elif variant not in variants():
        raise Unavailable(f"the instruction set {variant!r} is not among those here: {', '.join(variants())}")
    return _opened(_FOLDER / library_name(variant))


@functools.cache
def variants() -> tuple[str, ...]:
    """Instruction sets that this processor has and that were compiled, best first. Raises ``Unavailable``."""
    file = _checked(_FOLDER / library_name(PROCESSOR))
    try:
        return tuple(name for name in runnable(_FOLDER) if (_FOLDER / library_name(name)).is_file())
    except (OSError, AttributeError) as error:
        raise _damaged(file, error) from error


def best() -> str:
    return next(iter(variants()), GENERIC)


@functools.cache
def unavailable_reason() -> str | None:
    """Why the native step cannot be had, in a line; None where it can."""
    try:
        load()
    except Unavailable as error:
        return str(error)
    return None


def _checked(file: Path) -> Path:
    reason = _FOLDER / REASON
    if reason.is_file():
        raise Unavailable(reason.read_text(encoding="utf-8").strip())
    if not file.is_file():
        raise Unavailable(f"{file.name} was not built: {_AGAIN}")
    return file


def _damaged(file: Path, error: Exception) -> Unavailable:
    return Unavailable(f"{file.name} cannot be loaded ({error}): {_AGAIN}")


def _opened(file: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(_checked(file)))
        interface.declare(library)
    except (OSError, AttributeError) as error:
        raise _damaged(file, error) from error
    same = library.specdec_version() == interface.VERSION and library.specdec_sources().decode() == fingerprint()
    if not same:
        raise Unavailable(f"{file.name} was built from other sources: {_AGAIN}")
    return library
