"""The process in which ``sandbox.py`` has a program run. Standard library only: it is not imported but executed.

Reads ``{"source", "token", "seconds", "memory"}`` from standard input and writes ``{"token", "error"}`` to the file
descriptor given as argument, if the program lets it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

NOBODY = 65534
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
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


def leave_network() -> None:
    """Where the system permits it; opening sockets is refused in any case."""
    try:
        import ctypes

        unshare = ctypes.CDLL(None).unshare
    except (ImportError, OSError, AttributeError):
        return
    if unshare(CLONE_NEWNET) != 0:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)


def limit(seconds: int, memory: int) -> None:
    for kind, most in (
        ("RLIMIT_CPU", seconds),
        ("RLIMIT_AS", memory),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", 0),
    ):
        if hasattr(resource, kind):
            resource.setrlimit(getattr(resource, kind), (most, most))


def become_nobody() -> None:
    """Root is not bound by the limit on processes. Only where everybody may read Python's own library."""
    library = Path(os.__file__).resolve()
    if os.geteuid() == 0 and all(path.stat().st_mode & 0o005 == 0o005 for path in library.parents):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


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


def forbid_programs() -> None:
    """Root is bound by no limit on processes, and the function beneath ``subprocess`` tells no audit hook."""
    import _posixsubprocess

    def fork_exec(*_: Any) -> None:
        raise PermissionError("a program under test must not do this: fork_exec")

    beneath: Any = _posixsubprocess
    beneath.fork_exec = fork_exec


def main() -> None:
    channel = int(sys.argv[1])
    order = json.loads(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    source, token = order["source"], order["token"]
    sys.argv = [""]
    sys.dont_write_bytecode = True
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    leave_network()
    limit(order["seconds"], order["memory"])
    become_nobody()
    forbid_programs()
    # What the program may replace is taken before it runs.
    write, leave, dumps = os.write, os._exit, json.dumps
    sys.addaudithook(guard)
    error = ""
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except BaseException as reason:
        error = f"{type(reason).__name__}: {reason}"[:200].strip(": ")
    write(channel, dumps({"token": token, "error": error}).encode())
    leave(0)


if __name__ == "__main__":
    main()
