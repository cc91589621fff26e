"""A section of a YAML file: validation of its values and messages with their place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from core.common.document import Document, Rule, describe, mismatch, short
from core.common.errors import ConfigError, Problems, hint, nearest

MAX_UNKNOWN = 50
"""Maximum number of unknown keys with a message each."""


@dataclass(frozen=True)
class Section:
    """``path``: keys and indices in ``doc``. All methods accept further keys below it."""

    doc: Document
    problems: Problems
    path: tuple[Any, ...] = ()

    def at(self, *keys: Any) -> Section:
        return Section(self.doc, self.problems, (*self.path, *keys))

    def place(self, *keys: Any) -> str:
        return self.doc.place(*self.path, *keys)

    def add(self, message: str, *keys: Any) -> None:
        self.problems.add(self.place(*keys), message)

    def add_quoted(self, message: str) -> None:
        """Add an error at the first key below that the message quotes, else here."""
        self.problems.add(self.doc.place(*self.doc.quoted(self.path, message)), message)

    def warn(self, message: str, *keys: Any) -> None:
        self.problems.warn(self.place(*keys), message)

    def differs_upstream(self, message: str, *keys: Any) -> None:
        self.problems.upstream.add(self.place(*keys), message)

    def fails_upstream(self, message: str, *keys: Any) -> None:
        self.differs_upstream(f"upstream Ianvs would fail: {message}", *keys)

    def root(self, known: Iterable[str] = ()) -> dict[str, Any]:
        """The mapping under the top-level key (the path). Other top-level keys are warnings, or errors if they resemble
        one of ``known`` and so probably lack indentation."""
        file, data, place, (name,) = self.doc.file, self.doc.data, self.doc.place, self.path
        if not isinstance(data, dict) or not data:
            raise ConfigError([f"{file}:1: the file must begin with the key {name!r}"])
        if name not in data:
            key = str(next(iter(data)))
            raise ConfigError([f"{place(key)}: unknown key {key!r}; the file must begin with the key {name!r}"])
        for key in data:
            message = f"unknown key {short(key)} next to {name!r}"
            if key != name and nearest(key, known):
                raise ConfigError([f"{place(key)}: {message}; indent it if it belongs there"])
            if key != name:
                self.problems.warn(place(key), f"{message}: it has no effect")
        if not isinstance(data[name], dict):
            raise ConfigError([f"{place(name)}: {name} must be a mapping, got {describe(data[name])}"])
        return dict(data[name])

    def mapping(
        self,
        value: Any,
        known: dict[str, Rule],
        required: tuple[str, ...] = (),
        elsewhere: dict[str, str] | None = None,
        closed: bool = False,
    ) -> dict[str, Any]:
        """The known entries of a mapping that have the right type. An unknown key is a warning, or an error if it looks
        misspelled or the mapping is ``closed``. ``elsewhere``: messages for keys that belong to another place.
        """
        last = self.path[-1]
        what = str(last) if isinstance(last, str) else f"{self.path[-2]} item {last + 1}"
        if not isinstance(value, dict):
            self.add(f"{what} must be a mapping, got {describe(value)}")
            return {}
        elsewhere = elsewhere or {}
        unknown = [key for key in value if key not in known and key not in elsewhere]
        if len(unknown) > MAX_UNKNOWN:
            first, names = ", ".join(map(short, unknown[:3])), ", ".join(known)
            self.add(f"{len(unknown)} unknown keys in {what}: {first}, ... Known: {names}", unknown[0])
            return {}
        good, guessed = {}, set()
        for key, item in value.items():
            if key in elsewhere:
                self.add(elsewhere[key], key)
            elif key not in known:
                guessed.add(nearest(key, [name for name in known if name not in value]))
                self._add_unknown(key, what, known, closed)
            elif fault := mismatch(item, known[key]):
                self.add(f"{key} {fault}", key)
                guessed.add(key)
            else:
                good[key] = item
        for key in required:
            if key not in good and key not in guessed:
                self.add(f"the key {key!r} is missing in {what}")
        return good

    def _add_unknown(self, key: Any, what: str, known: Iterable[str], closed: bool) -> None:
        if closed or (isinstance(key, str) and nearest(key, known)):
            self.add(f"unknown key {short(key)} in {what}.{hint(key, known)}", key)
        else:
            self.warn(f"unknown key in {what}, which has no effect: {short(key)}. Known: {', '.join(known)}", key)

    def find(self, url: str, *keys: Any, advice: str = "") -> str | None:
        """The file or folder of a url. A missing one is an error that ends with ``advice``."""
        found = find_file(url, self.doc)
        if found is None:
            self.add(missing_file(url, self.doc) + advice, *keys)
        elif found != url:
            file = os.path.basename(self.doc.file)
            self.fails_upstream(f"{url} is in the folder of {file} only, not in the current directory", *keys)
        return found


def find_file(url: str, doc: Document) -> str | None:
    """The path of a url: relative to the current directory, as in Ianvs, else to the folder of the YAML file."""
    try:
        places = (url, os.path.join(os.path.dirname(doc.file), url))
        return next((place for place in places if os.path.exists(place)), None)
    except ValueError:  # a null byte
        return None


def missing_file(url: str, doc: Document) -> str:
    """The message about a missing file, with the most similar name in its folder."""
    for base in (".", os.path.dirname(doc.file) or "."):
        folder = os.path.dirname(os.path.join(base, url))
        if os.path.isdir(folder) and (close := nearest(os.path.basename(url), os.listdir(folder))):
            return f"file not found: {url}. Did you mean {close!r} in the same folder?"
    where = (
        "" if os.path.isabs(url) else f" (in the current directory and in the folder of {os.path.basename(doc.file)})"
    )
    return f"file not found: {url}{where}"
