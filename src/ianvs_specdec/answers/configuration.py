"""What determines an answer: the settings of a model as one value, and the key of a request under them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ianvs_specdec.identity import digest
from ianvs_specdec.types import Message

ID_DIGITS = 16
SHOWN = {"options.top_k": "options.eagle_topk"}
"""Names that have changed since the journal began, as they are told now."""


@dataclass(frozen=True)
class Configuration:
    """Everything that determines an answer apart from the messages, and the name by which people know the model."""

    model: str
    value: Mapping[str, Any]

    @functools.cached_property
    def digest(self) -> str:
        return digest(self.value)

    @property
    def id(self) -> str:
        return self.digest[:ID_DIGITS]

    def key(self, messages: list[Message], prediction: str = "") -> str:
        """SHA-256 of everything that determines the answer to ``messages`` and, with ``prediction``, its times."""
        return digest([self.digest, messages, *([prediction] if prediction else [])])


def prompt_id(messages: list[Message]) -> str:
    """What the same messages have in common in all configurations."""
    return digest(messages)[:ID_DIGITS]


def changes_of(record: Mapping[str, Any], configuration: Configuration) -> list[str]:
    """What differs between a configuration as the journal has it (``model``, ``value``) and another, in words."""
    old, new = _flat(record["value"]), _flat(configuration.value)
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if key == "model" and record.get("model") == configuration.model:
            changes.append(f"the files of model {configuration.model} changed")
        elif key == "model":
            changes.append(f"model {record.get('model')} -> {configuration.model}")
        else:
            changes.append(f"{SHOWN.get(key, key)} {_shown(key, before)} -> {_shown(key, after)}")
    return changes


def _shown(key: str, value: Any) -> str:
    return '"autoregressive"' if (key, value) in (("backend", "specdec"), ("method", "none")) else json.dumps(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {prefix + key: item}
    return flat
