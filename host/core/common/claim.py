"""One run at a time works in a job's folder: two would ask everything twice, and disturb each other's timings.

A run holds the lock ``.run.lock``, which the system releases when the process ends, however it ends. ``.run.json``
beside it says who that is. Plugins that keep files in the folder find their own run there by its id.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from core.common.errors import WorkspaceError
from core.common.files import make_folder, write_atomic, writing

LOCK, HOLDER = ".run.lock", ".run.json"
PATIENCE = 1.0
"""Seconds that a run which is just ending has to let go, and one that has just begun to say who it is."""
_TEMPORARY = re.compile(r"\..+?\.(?P<pid>[0-9]+)(\.[^.]*)?\.tmp")
"""Names of the temporary files of this host and of plugins that follow its custom."""


@contextmanager
def claimed(folder: str, run_id: str) -> Iterator[None]:
    """Hold a folder and remove what killed runs left half-written. WorkspaceError names the process that holds it."""
    from filelock import FileLock, Timeout

    make_folder(folder)
    lock, holder = FileLock(os.path.join(folder, LOCK), timeout=PATIENCE), os.path.join(folder, HOLDER)
    with writing(folder):
        try:
            lock.acquire()
        except Timeout as error:
            raise WorkspaceError(_in_use(folder, holder)) from error
        except NotImplementedError as error:
            raise OSError("its file system knows no locks") from error
    try:
        this = {
            "pid": os.getpid(),
            "host": platform.node(),
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
            "run": run_id,
        }
        write_atomic(holder, json.dumps(this) + "\n")
        _remove_stale(folder)
        yield
    finally:
        with suppress(OSError):
            os.unlink(holder)
        lock.release()


def _in_use(folder: str, holder: str) -> str:
    who = how = ""
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError), open(holder, encoding="utf-8") as stream:
        found = json.load(stream)
        who = ": process {pid:d} on {host}, since {started} ({command})".format(**found)
        how = f", or end it (kill {found['pid']})"
    return (
        f"{folder} is in use by another run{who}. Wait until it has ended{how}, or name another workspace, or another "
        "name, in the job file"
    )


def _remove_stale(folder: str) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match and not process_lives(int(match["pid"])):
                with suppress(OSError):
                    os.unlink(os.path.join(root, name))


def process_lives(pid: int) -> bool:
    import psutil

    return pid < 1 << 31 and psutil.pid_exists(pid)
