"""A process that renders chat templates for ``templates``: lines of JSON in, lines of JSON out.

A template is an untrusted program. Jinja's sandbox blocks files and Python internals, but not endless loops or
excessive memory, so the process limits both.
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
"""Bytes of address space that rendering may add."""
GENERATION = re.compile(r"(\{%[-+]?\s*(?:end)?)generation(\s*[-+]?%\})")
"""transformers' block tags around the assistant's text."""


class _Namespace(Namespace):
    """Without names that reach Python internals, as in transformers."""

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
    """``template`` in standard Jinja: transformers' blocks are replaced by neutral ones."""
    return GENERATION.sub(r"\1with\2", template)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def main() -> None:
    """Render each request: a template, its variables, a time, and a time limit in seconds."""
    compiled = functools.lru_cache(maxsize=64)(lambda template: environment().from_string(plain(template)))
    _limit_memory()
    if hasattr(signal, "setitimer"):
        # The parent may ignore or block the signal, which a child inherits.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            _end_after(request["seconds"])
            environment().globals["strftime_now"] = datetime.fromisoformat(request["time"]).strftime
            answer = {"text": compiled(request["template"]).render(request["variables"])}
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
