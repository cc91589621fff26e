"""A lock on a folder, so that only one run at a time works in it: two would repeat requests and disturb timings.

A run holds the lock ``.run.lock``, which the system releases when the process ends. ``.run.json`` describes the holder.
The host locks the folder of its job; a plugin of the same run shares the lock.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ianvs_specdec.common.errors import UserError

if TYPE_CHECKING:
    from filelock import FileLock

LOCK, HOLDER = ".run.lock", ".run.json"
PATIENCE = 1.0
"""Seconds to wait for a run that is ending, or that has not yet written ``.run.json``."""


class FolderLock:
    """Locks a folder as long as it is referenced. ``lock`` is None if the host holds the lock."""

    def __init__(self, lock: FileLock | None) -> None:
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.release(force=True)


_CLAIMS: WeakValueDictionary[Path, FolderLock] = WeakValueDictionary()
_CLAIMING = threading.Lock()


def lock_folder(folder: Path, run: str) -> FolderLock:
    """Lock an existing folder for this process, or share the lock of its ``run``. Raises UserError that names the
    process which holds the lock, and OSError."""
    folder = folder.resolve()
    with _CLAIMING:
        held = _CLAIMS.get(folder)
        if held is None:
            held = _CLAIMS[folder] = FolderLock(_acquired(folder, run))
        return held


def _acquired(folder: Path, run: str) -> FileLock | None:
    if _holder(folder).get("run") == run:
        return None
    # Any thread may release the lock.
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=PATIENCE, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        holder = _holder(folder)
        if holder.get("run") == run:
            return None
        raise UserError(in_use(folder, holder)) from error
    except NotImplementedError as error:
        raise OSError("its file system has no locks") from error
    command = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    holder = {
        "pid": os.getpid(),
        "host": platform.node(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": command,
        "run": run,
    }
    (folder / HOLDER).write_text(json.dumps(holder), encoding="utf-8")
    return lock


def _holder(folder: Path) -> dict[str, object]:
    try:
        holder = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def in_use(folder: Path, holder: dict[str, object]) -> str:
    """The error message for a locked folder."""
    if not isinstance(holder.get("pid"), int):
        return f"{folder} is in use by another run: wait until it has ended, or name another folder"
    who = f"process {holder['pid']} on {holder.get('host')}, since {holder.get('started')} ({holder.get('command')})"
    return (
        f"{folder} is in use by another run, {who}: wait until it has ended, or end it (kill {holder['pid']}), "
        "or name another folder"
    )
