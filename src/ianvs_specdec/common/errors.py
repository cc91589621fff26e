"""Errors that users can solve: one message, no traceback."""

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
"""Optional packages -> the extra that installs them."""


def visible(text: str) -> str:
    """Escape the non-printable characters of untrusted text, such as terminal control sequences, direction marks and
    lone surrogates (``\\x1b``). Line feeds, tabs and spaces are kept."""
    if text.isprintable():
        return text
    return "".join(one if _is_harmless(one) else one.encode("unicode_escape").decode() for one in text)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


class UserError(Exception):
    """An error that the user can fix. Its text is the whole message: what is wrong, where, and what to do. Messages may
    quote servers and files, so they are made ``visible``.

    ``key``: the configuration key at fault, if any, for which the host adds file and line. ``others``: further errors
    that were found at the same time.
    """

    others: tuple[UserError, ...] = ()

    def __init__(self, message: str, *, key: str | None = None) -> None:
        cause = sys.exception()
        if isinstance(cause, UnicodeDecodeError) and cause.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            message += ". It is UTF-16 text: save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
        super().__init__(visible(message))
        self.key = key


class AnswerError(UserError):
    """One request failed; others may succeed. ``failures``: see ``types.Trace``."""

    def __init__(self, message: str, failures: Sequence[tuple[float, str]] = (), *, key: str | None = None) -> None:
        super().__init__(message, key=key)
        self.failures = tuple(failures)


class ContextWindowError(AnswerError, ValueError):
    """A prompt does not fit the model's context window."""

    KIND = "context window"
    """Name of this failure in a trace."""


class PromptError(AnswerError):
    """A request cannot be tokenized to a prompt of the model."""


class ChatTemplateError(PromptError):
    """The model's chat template cannot render a chat."""


class RequestCancelledError(AnswerError):
    """A request was cancelled by its client."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


def unknown(kind: str, name: object, known: Iterable[str], *, key: str | None = None) -> UserError:
    """The error for a name that is not in ``known``. It names the closest match and all valid names."""
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    hint = f" Did you mean {lowered[close[0]]!r}?" if close else ""
    if isinstance(name, bool):
        hint = " YAML reads on and yes, off and no so: put a text into quotes."
    return UserError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}", key=key)


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra (this package is not on an index)."""
    lines = [line.replace('"', "'").partition(";") for line in metadata.requires("ianvs-specdec") or ()]
    return " ".join(["pip install", *(repr(name) for name, _, when in lines if repr(extra) in when)])


def missing_package_error(error: BaseException | None) -> UserError | None:
    """The error for a missing package if ``error``, or its cause, is a ``ModuleNotFoundError``, else None.

    A missing module of this package is a bug, not a missing package.
    """
    while error is not None and not (isinstance(error, ModuleNotFoundError) and error.name):
        error = error.__cause__
    package = str(getattr(error, "name", "")).partition(".")[0]
    if error is None or package == __package__.partition(".")[0]:
        return None
    extra = _EXTRAS.get(package)
    command = install_command(extra) if extra else "pip install -r requirements.txt"
    return UserError(f"the package {package} is not installed: {command}")


@contextmanager
def optional_import() -> Iterator[None]:
    """Replace the error of a failed import by ``missing_package_error``. Context manager and decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_package_error(error)) is None:
            raise
        raise missing from error


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning once per process."""
    log.warning("%s", message)
