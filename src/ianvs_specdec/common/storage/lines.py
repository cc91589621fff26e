"""An append-only file of lines, such as a log of feedback.

A failed append leaves the file unchanged. A killed process leaves at most one torn line, which the next append
terminates. Lines are synced to the disk by the first append after ``SYNC_SECONDS`` and by ``sync``: a power cut loses
at most the lines since then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

LOCK_SECONDS = 60
LOCK_PAUSE = 0.005
SYNC_SECONDS = 5.0


class LineFile:
    """Thread-safe, also between processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        # Creating a lock takes as long as a write.
        self._lock = FileLock(f"{path}.lock", timeout=LOCK_SECONDS, poll_interval=LOCK_PAUSE)
        self._unsynced_since: float | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, and create file and folder if needed. Without data, only check that this is possible.
        Raises OSError."""
        # The mutex is fair between threads; a waiting FileLock polls.
        with self._mutex:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(), open(self.path, "a+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size and data:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":
                        data = b"\n" + data
                try:
                    if data and file.write(data) != len(data):
                        raise OSError("the disk is full")
                except OSError:
                    # Report the error of the write, even if this fails too.
                    with suppress(OSError):
                        file.truncate(size)
                    raise
            now = time.monotonic()
            if data and self._unsynced_since is None:
                self._unsynced_since = now
            due = self._unsynced_since is not None and now - self._unsynced_since >= SYNC_SECONDS
        if due:
            self.sync()

    def sync(self) -> None:
        """Sync the lines since the last call to the disk. Failures are logged as warnings."""
        with self._mutex:
            if self._unsynced_since is None:
                return
            self._unsynced_since = None
        try:
            _force(self.path, os.O_RDWR)
            if os.name == "posix":
                # A new file is durable only after its folder is synced.
                _force(self.path.parent, os.O_RDONLY)
        except OSError as error:
            log.warning("%s may not be on the disk: %s", self.path, error.strerror or error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise OSError(f"another process has held {self._lock.lock_file} for {LOCK_SECONDS} s") from error
        except NotImplementedError as error:
            raise OSError("its file system has no locks") from error
        try:
            yield
        finally:
            self._lock.release()


def _force(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
