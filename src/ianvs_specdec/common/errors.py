"""Errors that are the user's to solve: one message, no traceback."""

from __future__ import annotations

import difflib
import functools
import logging
import sys
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata

log = logging.getLogger(__name__)

_EXTRAS = {
    "datasets": "data",
    "google": "split",
    "grpc": "split",
    "guidellm": "load",
    "huggingface_hub": "data",
    "matplotlib": "route",
    "presidio_analyzer": "privacy",
    "psutil": "resources",
    "pyarrow": "data",
    "pynvml": "energy",
    "scipy": "route",
    "sentence_transformers": "sentence-transformers",
    "simpy": "simulate",
    "sklearn": "route",
    "spacy": "privacy",
    "threadpoolctl": "route",
}
"""Packages that are not among what everybody installs -> the extra that brings them."""


def visible(text: str) -> str:
    """A text that others wrote, as it may be shown: what a terminal or a browser would act on, such as an escape
    sequence, a mark of the writing direction or half of a character, is written out (``\\x1b``). Line ends and tabs
    stay.
    """
    if text.isprintable():
        return text
    return "".join(character if _harmless(character) else _written_out(character) for character in text)


def _harmless(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


class UserError(Exception):
    """Something the user can put right. ``str()`` of it is the whole message: what is wrong, where, and what to do.
    A message may hold what servers and files say; it is made ``visible``.

    ``key`` names the configuration key at fault, where there is one; a host that knows the file adds file and line.
    ``others`` are further faults that were found with it.
    """

    others: tuple[UserError, ...] = ()

    def __init__(self, message: str, *, key: str | None = None) -> None:
        cause = sys.exception()
        if isinstance(cause, UnicodeDecodeError) and cause.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            message += ". It is UTF-16 text: save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
        super().__init__(visible(message))
        self.key = key


class AnswerError(UserError):
    """One request could not be answered; others may be. ``failures``: see ``types.Trace``."""

    def __init__(self, message: str, failures: Sequence[tuple[float, str]] = (), *, key: str | None = None) -> None:
        super().__init__(message, key=key)
        self.failures = tuple(failures)


class ContextWindowError(AnswerError, ValueError):
    """A prompt leaves no room for an answer in the model's context window."""

    KIND = "context window"
    """What such a failure is called in a trace."""


class PromptError(AnswerError):
    """What was asked makes no prompt of the model's tokens."""


class ChatTemplateError(PromptError):
    """The model's chat template makes no prompt of a chat."""


class AbandonedError(AnswerError):
    """A request was ended because nobody waits for its answer any more."""

    def __init__(self) -> None:
        super().__init__("nobody waits for this answer any more")


def unknown(kind: str, name: object, known: Iterable[str], *, key: str | None = None) -> UserError:
    """The error for a name that is not on a list: says the nearest valid one, and the list."""
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    hint = f" Did you mean {lowered[close[0]]!r}?" if close else ""
    if isinstance(name, bool):
        hint = " YAML reads on and yes, off and no so: put a text into quotes."
    return UserError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}", key=key)


def install(extra: str) -> str:
    """The command that installs what an extra of this package brings: the package itself is on no index."""
    lines = [line.replace('"', "'").partition(";") for line in metadata.requires("ianvs-specdec") or ()]
    return " ".join(["pip install", *(repr(name) for name, _, when in lines if repr(extra) in when)])


def not_installed(error: BaseException | None) -> UserError | None:
    """The error for a package that is missing, where that is what ``error``, or what it was raised from, says.

    A missing module of our own is a fault, not a missing package.
    """
    while error is not None and not (isinstance(error, ModuleNotFoundError) and error.name):
        error = error.__cause__
    package = str(getattr(error, "name", "")).partition(".")[0]
    if error is None or package == __package__.partition(".")[0]:
        return None
    extra = _EXTRAS.get(package)
    command = install(extra) if extra else "pip install -r requirements.txt"
    return UserError(f"the package {package} is not installed: {command}")


@contextmanager
def packages() -> Iterator[None]:
    """Raises ``not_installed`` in place of an import's own error. A decorator, too."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (told := not_installed(error)) is None:
            raise
        raise told from error


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning the first time, however often the same settings are checked."""
    log.warning("%s", message)
