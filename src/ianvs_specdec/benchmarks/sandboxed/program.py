"""The process of the program itself: runs it, then calls its function as often as the tests ask, with their values.

The tests are in another process. Whatever the program does to this one, it can only answer, rightly or wrongly.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ianvs_specdec.benchmarks.sandboxed.channel import Channel, Lost, told
from ianvs_specdec.benchmarks.sandboxed.values import decoded, encoded

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

DENIED = frozenset(
    f"os.{name}"
    for name in (
        *("chflags", "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "mkdir", "posix_spawn"),
        *("remove", "removexattr", "rename", "rmdir", "setxattr", "spawn", "symlink", "system", "truncate", "utime"),
    )
) | {"pty.spawn", "signal.pthread_kill", "subprocess.Popen", "resource.setrlimit", "resource.prlimit"}
"""Audit events of what a program must not do to the machine."""

DENIED_MODULES = ("socket.", "ctypes.", "shutil.", "fcntl.", "tempfile.")
SILENT = {"os": ("mkfifo", "mknod", "pidfd_open"), "signal": ("pidfd_send_signal",), "_posixsubprocess": ("fork_exec",)}
"""Functions that tell no audit hook."""


def run(channel: Channel, order: dict[str, Any], held: list[str]) -> None:
    """Execute ``order["source"]``, tell how that ended, and answer calls until nobody calls any more."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    channel.send({"held": held})
    send, receive, leave, arguments, result = channel.send, channel.receive, os._exit, decoded, encoded
    harden()
    try:
        exec(compile(order["source"], "program.py", "exec"), space)
        function = space.get(order["entry_point"])
        send({"error": ""})
    except BaseException as reason:
        send({"error": told(reason)})
        leave(0)
    try:
        while True:
            call = receive()
            given, named = [arguments(item) for item in call["args"]], arguments(call["kwargs"])
            try:
                value = function(*given, **named)  # type: ignore[misc]
                send({"value": result(value), "args": [result(item) for item in given]})
            except Lost:
                raise
            except BaseException as reason:
                send({"raised": type(reason).__name__, "text": told(reason)})
    except Lost:
        leave(0)


def harden() -> None:
    """Refuse what a program must not do, as far as Python itself can."""
    sys.argv = [""]
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] == "ianvs_specdec"]:
        del sys.modules[name]
    for module, names in SILENT.items():
        loaded: Any = __import__(module)
        for name in names:
            if hasattr(loaded, name):
                setattr(loaded, name, _refused(name))
    sys.addaudithook(guard)


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        allowed = path == os.devnull or not isinstance(flags, int) or not flags & WRITES
        # Other processes' environment variables, keys among them, are files there.
        allowed = allowed and (isinstance(path, int) or not os.path.realpath(os.fsdecode(path)).startswith("/proc/"))
    else:
        allowed = event not in DENIED and not event.startswith(DENIED_MODULES)
    if not allowed:
        raise PermissionError(f"a program under test must not do this: {event}")


def _refused(name: str) -> Any:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(f"a program under test must not do this: {name}")

    return refused
