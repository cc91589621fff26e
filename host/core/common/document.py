"""A YAML file as plain data, with the line of every key and item."""

from __future__ import annotations

import re
from typing import Any

import yaml

from core.common.errors import ConfigError, nearest

# libyaml is about twenty times as fast. Both loaders construct only plain types.
_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]
)
_UNLIKE = re.compile(r"[-+]?0[\d_]+|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?|\d{4}-\d\d?-\d\d?([Tt \t].*)?")
"""Ambiguous numbers of YAML 1.1: 010 is 8, 1:30 is 90."""
_COMMAND = re.compile(r"# {2,}\S")

MAX_BYTES, MAX_ENTRIES, DEEPEST = 1 << 20, 5_000, 50
"""Maximum bytes of a YAML file, its entries (keys, items and values, with aliases expanded) and its nesting depth."""
LONGEST_PLAIN = 4_000
"""Maximum characters of a value without quotes: parsing a number takes quadratic time."""
MAX_TEST_CASES = 10_000
"""Maximum size of the hyperparameter grid of an algorithm."""
SHOWN = 60
"""Maximum characters of a value in a message."""

Rule = Any
"""A type (``float`` includes ``int``, ``object`` is any), or a tuple of permitted words."""

_TYPE_NAMES = {
    str: "a string",
    list: "a list",
    dict: "a mapping",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


class Document:
    """``data``: the content of the file; ``place(*path)``: ``file:line`` of a path of keys and indices."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines: dict[tuple[Any, ...], int] = {(): 1}
        self._entries = 0
        content = self._read()
        self._text = content.decode("utf-8", "replace").splitlines()
        try:
            self._check_depth(content)
            self.data = self._parse(content)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = f"not valid YAML: {error.problem or error.context}"
            raise self._fault(mark.line if mark else 0, reason) from error
        except (yaml.YAMLError, ValueError) as error:
            raise self._fault(0, f"not valid YAML: {str(error).splitlines()[0]}") from error

    def _fault(self, line: int, message: str) -> ConfigError:
        return ConfigError([f"{self.file}:{line + 1}: {message}"])

    def _read(self) -> bytes:
        try:
            with open(self.file, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError([f"{self.file}: cannot be read: {error.strerror}"]) from error
        if len(content) > MAX_BYTES:
            limit = f"{MAX_BYTES >> 20} MiB"
            raise ConfigError([f"{self.file}: larger than {limit}: it is not a configuration file, or contains data"])
        return content

    def _check_depth(self, content: bytes) -> None:
        """Check the nesting depth before libyaml builds the tree recursively."""
        depth = 0
        for event in yaml.parse(content, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise self._fault(
                    event.start_mark.line if event.start_mark else 0, f"nested more than {DEEPEST} levels deep"
                )

    def _parse(self, content: bytes) -> Any:
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            self._walk(node, (), ())  # before the data is built, which drops duplicate keys
            return loader.construct_document(node)
        finally:
            loader.dispose()

    def _walk(self, node: yaml.Node, path: tuple[Any, ...], above: tuple[int, ...]) -> None:
        line = node.start_mark.line
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            message = f"the file has more than {MAX_ENTRIES} entries, with aliases expanded"
            raise self._fault(line, message)
        if id(node) in above:
            raise self._fault(line, "an anchor that contains itself")
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._walk(value, self._enter(key, path), above)
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._lines[(*path, i)] = item.start_mark.line + 1
                self._walk(item, (*path, i), above)
        elif isinstance(node, yaml.ScalarNode) and not node.style:
            self._check_plain(node, path)

    def _enter(self, key: yaml.Node, path: tuple[Any, ...]) -> tuple[Any, ...]:
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode):
            raise self._fault(line, "a key must be a name, not a list or a mapping")
        self._entries += 1
        here = (*path, key.value)
        if here in self._lines and key.value != "<<":
            raise self._fault(line, f"the key {key.value!r} is a duplicate, first in line {self._lines[here]}")
        self._lines[here] = line + 1
        return here

    def _check_plain(self, node: yaml.Node, path: tuple[Any, ...]) -> None:
        text, line = node.value, node.start_mark.line
        if len(text) > LONGEST_PLAIN:
            what = f"a value without quotes of more than {LONGEST_PLAIN} characters"
            raise self._fault(line, f"{what}; quote a text")
        if _UNLIKE.fullmatch(text):
            name = next((part for part in reversed(path) if isinstance(part, str) and part != "values"), "")
            read = yaml.load(text, _Loader)
            reading = f"{name}: YAML reads {text} as {read!s}" + " (a text)" * isinstance(read, str)
            raise self._fault(line, f'{reading}: write a number in plain digits, a text in quotes ("{text}")')

    def line(self, *path: Any) -> int:
        """The line of the path, or of its nearest parent in the file."""
        key = tuple(part if isinstance(part, int) else str(part) for part in path)
        while key not in self._lines:
            key = key[:-1]
        return self._lines[key]

    def quoted(self, path: tuple[Any, ...], message: str) -> tuple[Any, ...]:
        """The path of the first key below ``path`` that a message quotes, else ``path``."""
        below = [one for one in self._lines if one[: len(path)] == path and len(one) > len(path)]
        found = [one for one in below if isinstance(one[-1], str) and repr(one[-1]) in message]
        return min(found, key=lambda one: message.index(repr(one[-1])), default=path)

    def place(self, *path: Any) -> str:
        return f"{self.file}:{self.line(*path)}"

    def commands(self, *path: Any) -> list[str]:
        """The indented commands in the comment above a key, such as ``#   specdec data prepare mmlu``."""
        found: list[str] = []
        for line in reversed(self._text[: self.line(*path) - 1]):
            comment = line.strip()
            if not comment.startswith("#"):
                break
            if _COMMAND.match(comment):
                found.insert(0, comment[1:].strip())
        return found


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def describe(value: Any) -> str:
    """A value of the wrong type in a message: ``the string 'x'``, ``a list``, ``nothing``."""
    if value is None:
        return "nothing"
    if isinstance(value, (list, dict)):
        return _TYPE_NAMES[type(value)]
    words = " (YAML reads on and yes as True, off and no as False)" * isinstance(value, bool)
    return f"the {'string' if isinstance(value, str) else 'value'} {short(value)}{words}"


def mismatch(value: Any, rule: Rule) -> str:
    if isinstance(rule, tuple):
        close = nearest(value, rule)
        meant = f". Did you mean {close!r}?" if close else ""
        return "" if value in rule else f"must be one of {', '.join(rule)}, got {describe(value)}{meant}"
    if rule is object:
        return ""
    kinds = (int, float) if rule is float else (rule,)
    if isinstance(value, kinds) and not (isinstance(value, bool) and rule is not bool):
        return "" if value != "" else "must not be empty"
    return f"must be {_TYPE_NAMES[rule]}, got {describe(value)}"
