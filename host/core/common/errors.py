"""The host's kinds of errors, hints for misspelt names, and the one-line account of a plugin's exception."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from sedna.common.class_factory import PLUGIN_MARK

PLUGIN_ERRORS = (Exception, SystemExit)
"""What a plugin's code may raise without ending the run: a library that calls ``sys.exit`` ends its test case only."""


class ConfigError(Exception):
    """The job cannot be run as it is written: exit code 2. ``problems``: one message per fault, each with its place."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class WorkspaceError(Exception):
    """The results cannot be written: exit code 1, and the run ends, because no later test case would fare better."""


class Problems:
    """Collects faults, so that the user sees all of them at once instead of one per attempt."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, place: str, message: str) -> None:
        line = f"{place}: {message}"
        if line not in self.lines:
            self.lines.append(line)

    def raise_if_any(self) -> None:
        if self.lines:
            raise ConfigError(self.lines)


@dataclass(frozen=True)
class Failure:
    """Something a plugin did wrong, in words. The exception is not kept: its traceback would hold on to the models."""

    where: str
    message: str
    trace: str

    @classmethod
    def of(cls, where: str, error: BaseException) -> Failure:
        if isinstance(error, Failed):
            return error.failure
        return cls(where, explain(error), "".join(traceback.format_exception(error)))


class Failed(Exception):
    """Carries a failure that happened in another process."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be; None if none is near."""
    lowered = {k.lower().replace("-", "_").replace(" ", "_"): k for k in known}
    wanted = str(name).lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(wanted, lowered, n=1, cutoff=0.6)
    return lowered[close[0]] if close else None


LISTED = 80
"""How many names a message lists."""


def hint(name: object, known: Iterable[str], list_all: str = "Known") -> str:
    """`` Did you mean 'x'? Known: a, b, x`` - the tail of a message about an unknown name."""
    names = list(known)
    close = nearest(name, names)
    meant = f" Did you mean {close!r}?" if close else ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{meant} {list_all}: {', '.join(names[:LISTED])}{more}" if names else meant


def explain(error: BaseException) -> str:
    """One line about an exception from a plugin: type, message, its first cause, and the plugin's own line.

    An exception with an attribute ``key`` was written for the user by the plugin and is passed on as it is.
    """
    chain = [error]
    while (cause := _cause(chain[-1])) is not None and cause not in chain:
        chain.append(cause)
    for link in chain:
        if hasattr(link, "key"):
            return str(link)
    text = _name(error)
    if len(chain) > 1:
        text += f" - caused by {_name(chain[-1])}"
    place = next((p for link in reversed(chain) if (p := _plugin_line(link.__traceback__))), "")
    return f"{text} ({place})" if place else text


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
    """``file:line in function`` of the deepest frame that belongs to a plugin folder."""
    found = ""
    for frame, line in traceback.walk_tb(trace):
        if PLUGIN_MARK in frame.f_globals:
            found = f"{short_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
    return found


def short_path(path: str) -> str:
    """Relative to the current directory where that is shorter and possible (on Windows not across drives)."""
    try:
        return min(os.path.relpath(path), path, key=len)
    except ValueError:
        return path
