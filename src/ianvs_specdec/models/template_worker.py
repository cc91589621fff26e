"""Renders chat templates for ``templates`` in a process that can be ended: lines of JSON in, lines of JSON out.

A template is a program from whoever made the model. Jinja's sandbox keeps it from files and from Python's insides, not
from running for ever or from filling the memory.
"""

from __future__ import annotations

import functools
import json
import re
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 2 << 30
"""Bytes of address space that rendering may add to what the process has."""
GENERATION = re.compile(r"(\{%[-+]?\s*(?:end)?)generation(\s*[-+]?%\})")
"""Markers of transformers around the assistant's text."""


class _Namespace(Namespace):
    """Without names by which Python's insides could be reached, as in transformers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")
        super().__setitem__(name, value)


@functools.cache
def environment() -> Environment:
    """The environment in which transformers compiles chat templates."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _to_json
    made.globals |= {"raise_exception": _raise, "dict": lambda *args, **kwargs: dict(*args, **kwargs)}
    made.globals["namespace"] = _Namespace
    return made


def plain(template: str) -> str:
    """``template`` in Jinja's own words: its blocks of transformers are blocks without a meaning."""
    return GENERATION.sub(r"\1with\2", template)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def main() -> None:
    """Answers each line: a template, its variables, a time, and the seconds that it may take."""
    compiled = functools.lru_cache(maxsize=64)(lambda template: environment().from_string(plain(template)))
    _limit_memory()
    if hasattr(signal, "setitimer"):
        # Whoever started this may ignore or block the signal, which a child inherits.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            _end_after(asked["seconds"])
            environment().globals["strftime_now"] = datetime.fromisoformat(asked["time"]).strftime
            answer = {"text": compiled(asked["template"]).render(asked["variables"])}
        except (Exception, RecursionError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _end_after(0)
        print(json.dumps(answer), flush=True)


def _end_after(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
