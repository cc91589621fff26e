"""Lock of a job's folder: one run at a time, so that no query is sent twice and timings are not disturbed.

A run holds the lock file ``.run.lock``, which the system releases when the process ends. ``.run.json`` describes the
process; plugins that store files in the folder recognize their own run by its id.
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
TIMEOUT = 1.0
"""Seconds to wait for a run that is just ending."""
_TEMPORARY = re.compile(r"\..+?\.(?P<pid>[0-9]+)(\.[^.]*)?\.tmp")
"""Names of temporary files of this host and of plugins that follow its convention."""


@contextmanager
def run_lock(folder: str, run_id: str) -> Iterator[None]:
    """Hold the lock of a folder, and remove partial files of killed runs. Raises WorkspaceError if it is held."""
    from filelock import FileLock, Timeout

    make_folder(folder)
    lock, holder = FileLock(os.path.join(folder, LOCK), timeout=TIMEOUT), os.path.join(folder, HOLDER)
    with writing(folder):
        try:
            lock.acquire()
        except Timeout as error:
            raise WorkspaceError(_in_use(folder, holder)) from error
        except NotImplementedError as error:
            raise OSError("its file system does not support locks") from error
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
    process = end = ""
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError), open(holder, encoding="utf-8") as stream:
        found = json.load(stream)
        process = ": process {pid:d} on {host}, since {started} ({command})".format(**found)
        end = f", or end it (kill {found['pid']})"
    return (
        f"{folder} is in use by another run{process}. Wait until it has ended{end}, or change workspace or name "
        "in the job file"
    )


def _remove_stale(folder: str) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match and not process_exists(int(match["pid"])):
                with suppress(OSError):
                    os.unlink(os.path.join(root, name))


def process_exists(pid: int) -> bool:
    import psutil

    return pid < 1 << 31 and psutil.pid_exists(pid)
