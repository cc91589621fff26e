"""The process of a program under test, started by ``sandbox.py`` with the standard library only.

Reads ``{"source", "token", "seconds", "wall", "memory", "file_size"}`` as JSON from standard input. At the end of the
program writes ``{"token", "error"}`` to standard output; ``error`` is "" without an exception. The program's own
standard output is the null device.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DENIED = (
    *("ctypes.", "fcntl.", "pty.", "resource.", "shutil.", "signal.pthread_kill", "socket.", "subprocess."),
    "tempfile.",
    *("os.ch", "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename"),
    *("os.rmdir", "os.setxattr", "os.spawn", "os.symlink", "os.system", "os.truncate", "os.utime"),
)
"""Prefixes of forbidden audit events."""
SILENT = {"os": ("mkfifo", "mknod", "pidfd_open"), "signal": ("pidfd_send_signal",), "_posixsubprocess": ("fork_exec",)}
"""Functions that raise no audit event."""


def main() -> None:
    job = json.load(sys.stdin.buffer)
    verdict = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    limit(job)
    write, dumps = os.write, json.dumps
    harden()
    error = ""
    try:
        exec(compile(job.pop("source"), "program.py", "exec"), {"__name__": "__main__"})
    except BaseException as reason:
        error = f"{type(reason).__name__}: {reason}"[:200].strip(": ")
    write(verdict, dumps({"token": job["token"], "error": error}).encode())


def limit(job: dict[str, Any]) -> None:
    # Ends the process even if the job was killed.
    signal.setitimer(signal.ITIMER_REAL, job["wall"])
    for kind, most in (
        ("RLIMIT_CPU", job["seconds"]),
        ("RLIMIT_AS", job["memory"]),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", job["file_size"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", 0),
    ):
        if hasattr(resource, kind):
            allowed = resource.getrlimit(getattr(resource, kind))[1]
            least = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            try:
                resource.setrlimit(getattr(resource, kind), (least, least))
            except ValueError:
                # macOS refuses limits of address space.
                if sys.platform != "darwin":
                    raise


def harden() -> None:
    """Forbid operations, as far as Python can."""
    sys.argv = [""]
    for module, names in SILENT.items():
        loaded = __import__(module)
        for name in names:
            if hasattr(loaded, name):
                setattr(loaded, name, refuse)
    sys.addaudithook(guard)


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        allowed = path == os.devnull or not isinstance(flags, int) or not flags & WRITES
        # It has the environment variables of other processes, with their keys.
        allowed = allowed and (isinstance(path, int) or not os.path.realpath(os.fsdecode(path)).startswith("/proc/"))
        if not allowed:
            refuse()
    elif event.startswith(DENIED) and event != "os.chdir":
        refuse()


def refuse(*_: Any, **__: Any) -> None:
    raise PermissionError("a program under test must not do this")


main()
