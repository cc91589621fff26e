"""Errors of the host, hints for misspelled names, and one-line descriptions of plugin exceptions."""

from __future__ import annotations

import difflib
import itertools
import os
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from sedna.common.class_factory import PLUGIN_MARK

PLUGIN_ERRORS = (Exception, SystemExit)
"""Exceptions of plugins. They end the test case, not the run; libraries may call ``sys.exit``."""
MAX_MESSAGES, MAX_PLACES = 50, 8
"""Maximum number of printed messages, and of further places of each."""


class ConfigError(Exception):
    """Wrong configuration (exit code 2). ``problems``: one message with its place per error."""

    def __init__(self, problems: Iterable[str], warnings: Iterable[str] = ()) -> None:
        self.problems, self.warnings = list(problems), list(warnings)
        super().__init__("\n".join(self.problems))


class WorkspaceError(Exception):
    """The results cannot be written: the run ends (exit code 1)."""


class Messages:
    """Messages with their places. Equal messages are one line with all places."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, None]] = {}

    def add(self, place: str, message: str) -> None:
        self._places.setdefault(message, {})[place] = None

    def __len__(self) -> int:
        return len(self._places)

    def lines(self) -> list[str]:
        lines = [_line(message, *places) for message, places in itertools.islice(self._places.items(), MAX_MESSAGES)]
        more = len(self._places) - MAX_MESSAGES
        return [*lines, f"and {more} more of this kind"] if more > 0 else lines


def _line(message: str, first: str, *others: str) -> str:
    file = first.rpartition(":")[0]
    shown = [place.removeprefix(f"{file}:") for place in others[:MAX_PLACES]]
    more = f" and {len(others) - MAX_PLACES} more" if len(others) > MAX_PLACES else ""
    return f"{first}: {message}" + (f" (also at {', '.join(shown)}{more})" if others else "")


class Problems:
    """Problems of a job. ``errors`` prevent the run, ``warnings`` do not. ``upstream``: what upstream Ianvs would
    reject or ignore. ``passed``: checks that need not be repeated."""

    def __init__(self) -> None:
        self.errors, self.warnings, self.upstream = Messages(), Messages(), Messages()
        self.passed: set[str] = set()
        self.add, self.warn = self.errors.add, self.warnings.add

    def raise_if_any(self) -> None:
        if self.errors:
            raise ConfigError(self.errors.lines(), self.warnings.lines())


@dataclass(frozen=True)
class Failure:
    """A plugin's exception as text: its traceback would keep the models in memory."""

    where: str
    message: str
    trace: str

    @classmethod
    def of(cls, where: str, error: BaseException) -> Failure:
        if isinstance(error, Failed):
            return error.failure
        return cls(where, explain(error), "".join(traceback.format_exception(error)))


class Failed(Exception):
    """A failure in another process."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


NEAR, NEARER = 0.7, 0.85
"""Least similarity (difflib's ratio) of a misspelled name and the suggestion. NEARER is for names made of the same few
words: ``Edge Prompt Tokens`` is not a misspelled ``Cloud Prompt Tokens``.
"""
SHORT_NAME, NEAR_SHORT = 5, 0.6
"""Maximum characters of a short name, and its least similarity: two swapped letters are half of it."""
LONGEST_NAME = 200
"""Maximum characters of a name that is compared."""


def nearest(name: object, known: Iterable[str], similarity: float = NEAR) -> str | None:
    lowered = {_lowered(other): other for other in known}
    wanted = _lowered(str(name)) if len(str(name)) <= LONGEST_NAME else ""
    if len(wanted) <= SHORT_NAME:
        similarity = min(similarity, NEAR_SHORT)
    close = difflib.get_close_matches(wanted, lowered, n=1, cutoff=similarity)
    return lowered[close[0]] if close else None


def _lowered(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


LISTED, NEAREST = 40, 5
"""Maximum number of names that a message lists; of more than these, the number of the most similar ones."""


def hint(name: object, known: Iterable[str], list_all: str = "Known") -> str:
    """The end of a message about an unknown name: `` Did you mean 'x'? Known: a, b, x``."""
    names = list(known)
    close = nearest(name, names)
    meant = f" Did you mean {close!r}?" if close else ""
    listed = difflib.get_close_matches(str(name), names, NEAREST, 0) if len(names) > LISTED else names
    more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return f"{meant} {list_all}: {', '.join(listed)}{more}" if names else meant


def explain(error: BaseException) -> str:
    """One line about a plugin's exception: type, message, first cause, line in the plugin. The text of an exception
    with an attribute ``key`` is for users and is returned unchanged."""
    chain = [error]
    while (cause := _cause(chain[-1])) is not None and cause not in chain:
        chain.append(cause)
    for link in chain:
        if hasattr(link, "key"):
            return str(link)
    reason = f" - caused by {_name(chain[-1])}" if len(chain) > 1 else ""
    place = next((f" ({line})" for link in reversed(chain) if (line := _plugin_line(link.__traceback__))), "")
    return f"{_name(error)}{reason}{place}"


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _name(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    message = str(error).strip()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _plugin_line(trace: TracebackType | None) -> str:
    found = ""
    for frame, line in traceback.walk_tb(trace):
        if PLUGIN_MARK in frame.f_globals:
            found = f"{short_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
    return found


def short_path(path: str) -> str:
    """The path relative to the current directory if that is shorter and possible (on Windows, on the same drive)."""
    try:
        return min(os.path.relpath(path), path, key=len)
    except ValueError:
        return path
