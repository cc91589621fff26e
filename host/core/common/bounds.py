"""How much a configuration file may hold. A file of a few hundred bytes can stand for more than any machine has
(aliases of aliases), or be nested deeper than a parser can follow, so it is
looked through before anything is made of it.
"""

from __future__ import annotations

from typing import Any

import yaml

from core.common.errors import ConfigError

MOST_BYTES = 1 << 20
"""Of one YAML file. The largest of the example has less than a hundredth of it."""
MOST_ENTRIES = 5_000
"""Keys, items and values in one file, an alias counted as all that it stands for. The example's have some 400."""
MOST_TEST_CASES = 10_000
"""Points of the grid that an algorithm's hyperparameters span: a few lines can span more than a life is long."""
DEEPEST = 50
"""Levels of mappings and lists inside each other."""
LONGEST_PLAIN = 4_000
"""Characters of a value without quotes: it may be a number, and reading one takes the square of its digits."""


def read_bounded(file: str) -> bytes:
    """The content of a configuration file. ConfigError if it cannot be read or is too large to be one."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    if len(content) > MOST_BYTES:
        limit = f"{MOST_BYTES >> 20} MiB"
        raise ConfigError([f"{file}: larger than {limit}: this is no configuration file, or it holds data"])
    return content


def check_bounds(file: str, loader: Any) -> None:
    """Go through the events of a loader. ConfigError at the first place at which the file goes beyond a bound;
    yaml.YAMLError as the parser raises it.
    """
    sizes: dict[str, int] = {}
    open_counts: list[tuple[str | None, int]] = []  # anchor, and the entries before it
    total = 0
    while loader.check_event():
        event = loader.get_event()
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            total += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            _check_scalar(file, line, event)
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_counts.append((event.anchor, total))
            total += 1
            if len(open_counts) > DEEPEST:
                raise ConfigError([f"{file}:{line}: nested more than {DEEPEST} levels deep"])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_counts.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if total > MOST_ENTRIES:
            kind = ", with what its aliases stand for" if sizes else ""
            raise ConfigError([f"{file}:{line}: the file holds more than {MOST_ENTRIES} entries{kind}"])


def _check_scalar(file: str, line: int, event: Any) -> None:
    plain = event.implicit[0] or event.tag is not None
    if plain and len(event.value) > LONGEST_PLAIN:
        what = f"a value without quotes of more than {LONGEST_PLAIN} characters"
        raise ConfigError([f"{file}:{line}: {what}; put a text into quotes"])
