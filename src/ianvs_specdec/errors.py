"""Errors that are the user's to solve: one message, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Something the user can put right. ``str()`` of it is the whole message: what is wrong, where, and what to do.

    ``key`` names the configuration key at fault, where there is one; a host that knows the file adds file and line.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class AnswerError(UserError):
    """One request could not be answered; others may be. ``failures``: see ``types.Trace``."""

    def __init__(self, message: str, failures: Sequence[tuple[float, str]] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


def unknown(kind: str, name: object, known: Iterable[str], *, key: str | None = None) -> UserError:
    """The error for a name that is not on a list: says the nearest valid one, and the list."""
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    hint = f" Did you mean {lowered[close[0]]!r}?" if close else ""
    return UserError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}", key=key)
