"""Renders one chat template for ``templates`` in a process that can be ended: lines of JSON in, lines of JSON out."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

MEMORY = 2 << 30
"""Bytes of address space that rendering may add to what the process has."""


def main() -> None:
    """The first line holds the template and how long a chat may take; the others chats, with variables and a time."""
    from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

    told = json.loads(sys.stdin.readline())
    _limit_memory()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        # Should nobody be left to end this process, it ends by itself.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 2 * told["seconds"])
        try:
            asked, compiled = json.loads(line), _compile_jinja_template(told["template"])
            compiled.environment.globals["strftime_now"] = datetime.fromisoformat(asked["time"]).strftime
            rendered: Any = render_jinja_template(chat_template=told["template"], **asked["variables"])
            answer = {"text": str(rendered[0][0])}
        except (Exception, RecursionError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
