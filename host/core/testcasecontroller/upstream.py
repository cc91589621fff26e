"""Requirements of upstream Ianvs and Sedna on plugin classes that this host does not have, for ``ianvs check``."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

PATH = "model_path"
FRAMEWORK = "BACKEND_TYPE"
_PASSED_TO_CLOUD = ("post_process", "mining_mode")
_PATH_VARIABLES = (PATH, PATH.upper(), "MODEL_URL")


def would_fail(kind: str, target: Any) -> Iterator[str]:
    """Messages about a class that upstream would reject as a module of this type."""
    if not isinstance(target, type):
        return
    if kind == "cloudmodel":
        lacking = _not_taken(target, "inference", _PASSED_TO_CLOUD)
        if lacking:
            yield f"inference() is called with {' and '.join(lacking)} as well, which it does not accept: add **kwargs"
    elif kind == "edgemodel":
        yield from _edge(target)


def _edge(target: type) -> Iterator[str]:
    text = _source(target)
    torch = os.environ.get(FRAMEWORK, "").upper() == "TORCH" or '"TORCH"' in text or "'TORCH'" in text
    first = _first_parameter(target, "predict")
    if first not in ("data", None):
        yield f"predict() is called with the keyword data, its first parameter is {first}: rename it"
    if torch and _not_taken(target, "predict", ("mining_mode",)):
        how = f"with {FRAMEWORK} TORCH, predict() is called with mining_mode as well"
        yield f"{how}, which it does not accept: add **kwargs"
    if not torch and hasattr(target, "load") and _not_taken(target, "load", ("model_url",)):
        yield "load() is called with model_url, which it does not accept: add **kwargs"
    if FRAMEWORK not in os.environ and FRAMEWORK not in text:
        message = "is not set, and the default needs TensorFlow: set it to TORCH"
        yield f"the environment variable {FRAMEWORK} {message}"
    if not any(name in os.environ for name in _PATH_VARIABLES) and PATH not in text:
        message = "is not set: the edge model must set it to an existing path, or to a name like org/model"
        yield f"the environment variable {PATH} {message}"


def _not_taken(target: type, method: str, names: tuple[str, ...]) -> list[str]:
    parameters = _parameters(target, method)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    return [name for name in names if name not in {p.name for p in parameters}]


def _first_parameter(target: type, method: str) -> str | None:
    """The first parameter after ``self``, or None if it is not a plain one."""
    first = next((p for p in _parameters(target, method) or [] if p.name != "self"), None)
    return first.name if first is not None and first.kind is first.POSITIONAL_OR_KEYWORD else None


def _parameters(target: type, method: str) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(getattr(target, method)).parameters.values())
    except (AttributeError, TypeError, ValueError):
        return None


def _source(target: type) -> str:
    """The source of the files of a class and its bases, which often set environment variables."""
    texts = []
    for name in {base.__module__ for base in target.__mro__[:-1]}:
        with suppress(KeyError, OSError, TypeError):
            texts.append(inspect.getsource(sys.modules[name]))
    return "\n".join(texts)
