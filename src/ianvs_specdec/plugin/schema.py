"""JSON schema of an edge or cloud model's settings file, for editors (``# yaml-language-server: $schema=...``).

Usage: ``python -m ianvs_specdec.plugin.schema > model_settings.schema.json``
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ianvs_specdec.backends import ALIASES, BACKENDS, backend
from ianvs_specdec.common.sampling import Sampling
from ianvs_specdec.common.settings import properties
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, GeneralSettings

_OURS = ("required", "wanted", "unset")
"""Our own keys, which are not part of JSON schema."""


def schema() -> dict[str, Any]:
    """The schema (draft 7, which editors support best)."""
    known: dict[str, dict[str, Any]] = {}
    for kind in (GeneralSettings, Sampling):
        known |= {name: _optional([declared]) for name, declared in properties(kind).items()}
    known["backend"] |= {"enum": [*BACKENDS, *ALIASES, SAME_AS_EDGE]}
    options: dict[str, list[dict[str, Any]]] = {}
    for name in BACKENDS:
        for option, declared in properties(backend(name).Options).items():
            options.setdefault(option, []).append(declared)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Hyperparameters of an edge or cloud model",
        "type": "object",
        "definitions": {"back end": {"enum": [*BACKENDS, *ALIASES]}},
        "properties": {**known, **{name: _by_back_end(_optional(found)) for name, found in options.items()}},
        "additionalProperties": False,
    }


def _optional(declarations: list[dict[str, Any]]) -> dict[str, Any]:
    """A value that one of the declarations accepts, or null for the default."""
    plain: list[dict[str, Any]] = []
    for declared in declarations:
        one = {key: value for key, value in declared.items() if key not in (*_OURS, "description", "default", "title")}
        if one not in plain:
            plain.append(one)
    ((description, _),) = Counter(declared.get("description", "") for declared in declarations).most_common(1)
    return {"description": description, "anyOf": [*plain, {"type": "null"}]}


def _by_back_end(value: dict[str, Any]) -> dict[str, Any]:
    """The value, or a mapping from back ends to values."""
    names = {"$ref": "#/definitions/back end"}
    mapping = {"type": "object", "propertyNames": names, "additionalProperties": {"anyOf": value["anyOf"]}}
    return {**value, "anyOf": [*value["anyOf"], mapping]}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1, ensure_ascii=False))
