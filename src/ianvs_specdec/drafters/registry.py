"""The drafting methods by name. A new method is one file and one line in ``METHODS``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ianvs_specdec.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.decoding.contracts import Drafter


@dataclass(frozen=True)
class Method:
    """``drafter`` is "module:Class"; ``options`` are its constructor's keyword arguments; ``length`` is the default
    speculation length; ``backend`` is the method's name as a back end in Ianvs."""

    drafter: str
    backend: str
    length: str
    options: tuple[str, ...] = ()


METHODS: dict[str, Method] = {
    "none": Method("ianvs_specdec.drafters.none:NoDraft", "specdec", "fixed:0"),
    "prompt_lookup": Method(
        "ianvs_specdec.drafters.prompt_lookup:PromptLookup", "PromptLookup", "fixed:10", ("max_ngram",)
    ),
}

BACKENDS: dict[str, str] = {method.backend: name for name, method in METHODS.items()}
"""Name of the back end in Ianvs -> name of the method."""


def options(name: str) -> tuple[str, ...]:
    """The option names of a method. ``length`` is among them for every method that drafts; the caller hands it to
    ``lengths``."""
    method = _method(name)
    return method.options if method.length == "fixed:0" else (*method.options, "length")


def default_length(name: str) -> str:
    """The speculation length of a method for which none was chosen, as ``lengths.create`` takes it."""
    return _method(name).length


def create(name: str, settings: Mapping[str, Any] | None = None) -> Drafter:
    """A drafter by name, with values for its ``options``; ``length`` may be among them and is passed over here.

    Raises ``UserError`` for an unknown method or option and for a value the drafter does not take.
    """
    method = _method(name)
    chosen = dict(settings or {})
    for key in chosen:
        if key not in options(name):
            raise unknown(f"option of {name}", key, options(name), key=key)
    chosen.pop("length", None)
    module, _, cls = method.drafter.partition(":")
    try:
        return getattr(importlib.import_module(module), cls)(**chosen)
    except (TypeError, ValueError) as error:
        raise UserError(f"method {name}: {error}") from error


def _method(name: str) -> Method:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
