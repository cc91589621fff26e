"""What determines an answer: the settings of a model as one value, and the key of a request under them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ianvs_specdec.common.types import Message
from ianvs_specdec.records.identity import digest

ID_DIGITS = 16
MANNERS = ("backend", "method")
"""Keys, here or there in a configuration, that tell one way of decoding from another."""


@dataclass(frozen=True)
class Configuration:
    """Everything that determines an answer apart from the messages, and the name by which people know the model.
    ``files``: see ``FileDigests``."""

    model: str
    value: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)

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


def changes_of(record: Mapping[str, Any], configuration: Configuration) -> list[str] | None:
    """What differs between a configuration as the journal has it (``model``, ``value``, ``files``) and another, in
    words; None where these are two models or ways of decoding, of which neither comes of the other."""
    old, new = _flat(record["value"]), _flat(configuration.value)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if record.get("model") != configuration.model or any(key.rpartition(".")[2] in MANNERS for key in changed):
        return None
    changes = []
    for key in changed:
        before, after = old.get(key), new.get(key)
        files = _changed_files(record.get("files"), before, configuration.files, after)
        if key == "model" or files:
            owner = f"model {configuration.model}" if key == "model" else key
            changes.append(f"{files or 'the files'} of {owner} changed")
        else:
            changes.append(f"{key} {json.dumps(before)} -> {json.dumps(after)}")
    return changes


def _changed_files(files: Any, before: Any, others: Mapping[str, Any], after: Any) -> str:
    old = files.get(before) if isinstance(files, Mapping) and isinstance(before, str) else None
    new = others.get(after) if isinstance(after, str) else None
    if not isinstance(old, Mapping) or new is None:
        return ""
    return ", ".join(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {prefix + key: item}
    return flat
