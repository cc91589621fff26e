"""One run at a time works in a folder: two would ask everything twice, and disturb each other's timings.

A run holds the lock ``.run.lock``, which the system releases when the process ends, however it ends. ``.run.json``
beside it says who that is. The host holds both for the folder of its job, so that a plugin in it meets its own run.
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
"""Seconds that a run which is just ending has to let go, and one that has just begun to say who it is."""


class FolderLock:
    """Holds a folder as long as somebody holds this. ``lock`` is None where the host does."""

    def __init__(self, lock: FileLock | None) -> None:
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.release(force=True)


_CLAIMS: WeakValueDictionary[Path, FolderLock] = WeakValueDictionary()
_CLAIMING = threading.Lock()


def lock_folder(folder: Path, run: str) -> FolderLock:
    """Claim an existing folder for this process, or take part in the claim of its run. Raises UserError that names the
    process which holds it, and OSError.
    """
    folder = folder.resolve()
    with _CLAIMING:
        held = _CLAIMS.get(folder)
        if held is None:
            held = _CLAIMS[folder] = FolderLock(_acquired(folder, run))
        return held


def _acquired(folder: Path, run: str) -> FileLock | None:
    if _holder(folder).get("run") == run:
        return None
    # One thread may let go of what another has taken.
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
        raise OSError("its file system knows no locks") from error
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
    """What to tell who finds the folder held."""
    if not isinstance(holder.get("pid"), int):
        return f"{folder} is in use by another run: wait until it has ended, or name another folder"
    who = f"process {holder['pid']} on {holder.get('host')}, since {holder.get('started')} ({holder.get('command')})"
    return (
        f"{folder} is in use by another run, {who}: wait until it has ended, or end it (kill {holder['pid']}), "
        "or name another folder"
    )
