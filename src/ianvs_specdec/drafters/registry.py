"""The drafting methods by name. A new method is one file and one line in ``METHODS``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.decoding.contracts import Drafter


Option = type | tuple[str, ...]
"""What an option takes: int (a whole number from 1), float (0 to 1), Path (a file or folder), bool, or one of some
words."""


@dataclass(frozen=True)
class Method:
    """``drafter`` is "module:Class"; ``options`` are its constructor's keyword arguments, those in ``required`` without
    a default; ``length`` is the default speculation length; ``backend`` is the method's name as a back end in Ianvs.
    """

    drafter: str
    backend: str
    length: str
    options: Mapping[str, Option] = field(default_factory=dict)
    required: tuple[str, ...] = ()


METHODS: dict[str, Method] = {
    "none": Method("ianvs_specdec.drafters.none:NoDraft", "specdec", "fixed:0"),
    "prompt_lookup": Method(
        "ianvs_specdec.drafters.prompt_lookup:PromptLookup", "PromptLookup", "fixed:10", {"max_ngram": int}
    ),
    "predicted_output": Method(
        "ianvs_specdec.drafters.predicted_output:PredictedOutput", "PredictedOutput", "fixed:64", {"resync": int}
    ),
    "lookahead": Method(
        "ianvs_specdec.drafters.lookahead.drafter:lookahead",
        "LadeSpecDec",
        "full",
        {"level": int, "window": int, "guess": int, "start": ("official", "prompt")},
    ),
    "rest": Method(
        "ianvs_specdec.drafters.rest:Rest", "RestSpecDec", "full", {"datastore": Path, "nodes": int}, ("datastore",)
    ),
    "suffix": Method(
        "ianvs_specdec.drafters.suffix.drafter:Suffix",
        "SuffixSpecDec",
        "full",
        {"datastore": Path, "head": Path, "min_match": int},
    ),
    "recycling": Method(
        "ianvs_specdec.drafters.recycling:Recycling",
        "RecyclingSpecDec",
        "full",
        {"nodes": int, "successors": int, "order": int},
    ),
    "draft_model": Method(
        "ianvs_specdec.drafters.draft_model.drafter:DraftModel",
        "DraftModelSpecDec",
        "fixed:5",
        {"draft": Path, "branches": int},
        ("draft",),
    ),
    "medusa": Method(
        "ianvs_specdec.drafters.medusa.drafter:Medusa",
        "MedusaSpecDec",
        "full",
        {"head": Path, "tree": ("static", "dynamic", "chain"), "nodes": int},
        ("head",),
    ),
    "eagle": Method(
        "ianvs_specdec.drafters.eagle.drafter:Eagle",
        "EagleSpecDec",
        "full",
        {
            "head": Path,
            "tree": ("static", "dynamic", "chain"),
            "total_tokens": int,
            "depth": int,
            "top_k": int,
        },
        ("head",),
    ),
}

COMMON: dict[str, Option] = {"acceptance": ("rejection", "coupled", "typical")}
"""Options of every method that are not the drafter's: how sampled tokens are accepted (see ``decoding.acceptance``)."""

BACKENDS: dict[str, str] = {method.backend: name for name, method in METHODS.items()}
"""Name of the back end in Ianvs -> name of the method."""


def options(name: str) -> tuple[str, ...]:
    """The option names of a method. ``length`` is among them for every method that drafts; the caller hands it to
    ``lengths``, and ``COMMON`` to the loop."""
    method = _method(name)
    return (*method.options, *COMMON, *(() if method.length == "fixed:0" else ("length",)))


def default_length(name: str) -> str:
    """The speculation length of a method for which none was chosen, as ``lengths.create`` takes it."""
    return _method(name).length


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ``UserError``, with the ``key`` at fault, for an option or value that the method does not take.

    Imports nothing, so that a configuration can be checked before anything is loaded.
    """
    method = _method(name)
    for key, value in settings.items():
        if key not in options(name):
            raise unknown(f"option of {name}", key, options(name), key=key)
        if key != "length":
            _check_value(name, key, value, {**method.options, **COMMON}[key])
    for key in method.required:
        if settings.get(key) is None:
            raise UserError(f"method {name} needs {key}: a folder or file to draft from", key=key)


def _check_value(name: str, key: str, value: Any, option: Option) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(option, tuple):
        if value not in option:
            raise unknown(f"{key} of {name}", str(value), option, key=key)
    elif option is int and not (number and isinstance(value, int) and value >= 1):
        raise UserError(f"method {name}: {key} must be a whole number of at least 1, got {value!r}", key=key)
    elif option is float and not (number and 0 <= value <= 1):
        raise UserError(f"method {name}: {key} must be a number from 0 to 1, got {value!r}", key=key)
    elif option is bool and not isinstance(value, bool):
        raise UserError(f"method {name}: {key} must be true or false, got {value!r}", key=key)
    elif option is Path and not (value and isinstance(value, (str, Path)) and Path(value).exists()):
        raise UserError(f"method {name}: {key} must be an existing file or folder, got {value!r}", key=key)


def create(name: str, settings: Mapping[str, Any] | None = None) -> Drafter:
    """A drafter by name, with values for its ``options``; ``length`` and ``COMMON`` may be among them and are passed
    over here.

    Raises ``UserError`` for an unknown method or option and for a value the drafter does not take.
    """
    method = _method(name)
    check(name, settings or {})
    chosen = {key: value for key, value in (settings or {}).items() if key in method.options}
    module, _, cls = method.drafter.partition(":")
    drafter: Drafter = getattr(importlib.import_module(module), cls)(**chosen)
    return drafter


def _method(name: str) -> Method:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
