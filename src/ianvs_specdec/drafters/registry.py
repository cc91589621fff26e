"""The drafting methods by name. A new method is one file and one line in ``METHODS``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ianvs_specdec.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.decoding.contracts import Drafter


@dataclass(frozen=True)
class Method:
    """``drafter`` is "module:Class"; ``options`` are its constructor's keyword arguments with their types (int: a whole
    number from 1); ``length`` is the default speculation length; ``backend`` is the method's name as a back end in
    Ianvs.
    """

    drafter: str
    backend: str
    length: str
    options: Mapping[str, type] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "none": Method("ianvs_specdec.drafters.none:NoDraft", "specdec", "fixed:0"),
    "prompt_lookup": Method(
        "ianvs_specdec.drafters.prompt_lookup:PromptLookup", "PromptLookup", "fixed:10", {"max_ngram": int}
    ),
}

BACKENDS: dict[str, str] = {method.backend: name for name, method in METHODS.items()}
"""Name of the back end in Ianvs -> name of the method."""


def options(name: str) -> tuple[str, ...]:
    """The option names of a method. ``length`` is among them for every method that drafts; the caller hands it to
    ``lengths``."""
    method = _method(name)
    return tuple(method.options) if method.length == "fixed:0" else (*method.options, "length")


def default_length(name: str) -> str:
    """The speculation length of a method for which none was chosen, as ``lengths.create`` takes it."""
    return _method(name).length


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ``UserError``, with the ``key`` at fault, for an option or value that the method does not take.

    Imports nothing, so that a configuration can be checked before anything is loaded.
    """
    for key, value in settings.items():
        if key not in options(name):
            raise unknown(f"option of {name}", key, options(name), key=key)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if _method(name).options.get(key) is int and not whole:
            raise UserError(f"method {name}: {key} must be a whole number of at least 1, got {value!r}", key=key)


def create(name: str, settings: Mapping[str, Any] | None = None) -> Drafter:
    """A drafter by name, with values for its ``options``; ``length`` may be among them and is passed over here.

    Raises ``UserError`` for an unknown method or option and for a value the drafter does not take.
    """
    method = _method(name)
    chosen = dict(settings or {})
    check(name, chosen)
    chosen.pop("length", None)
    module, _, cls = method.drafter.partition(":")
    drafter: Drafter = getattr(importlib.import_module(module), cls)(**chosen)
    return drafter


def _method(name: str) -> Method:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
