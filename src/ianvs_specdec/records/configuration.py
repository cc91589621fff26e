"""Configurations: everything that determines an answer, and the key of a request."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ianvs_specdec.common.types import Message
from ianvs_specdec.records.identity import digest

ID_DIGITS = 16
METHOD_KEYS = ("backend", "method")
"""Keys anywhere in a configuration that distinguish decoding methods."""


@dataclass(frozen=True)
class Configuration:
    """Everything that determines an answer except the messages. ``model``: its name; ``files``: see ``FileDigests``."""

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
    """The id of messages, independent of the configuration."""
    return digest(messages)[:ID_DIGITS]


def changes_of(record: Mapping[str, Any], configuration: Configuration) -> list[str] | None:
    """The differences between a configuration in the journal (``model``, ``value``, ``files``) and another, as text;
    None for different models or decoding methods."""
    old, new = _flat(record["value"]), _flat(configuration.value)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if record.get("model") != configuration.model or any(key.rpartition(".")[2] in METHOD_KEYS for key in changed):
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
