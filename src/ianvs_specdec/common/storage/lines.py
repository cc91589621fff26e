"""A file of lines that are only ever appended, such as a log of feedback.

An append is written whole or not at all, whatever the disk says. A process that is killed leaves at most one torn line,
which the next append ends, so that it alone is lost. Lines are forced onto the disk by the first append after
``SYNC_SECONDS`` and by ``sync``: a power cut costs at most what came since.
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
    """Thread-safe; several processes may append to the same file. ``append`` raises OSError with a ``strerror``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        # Made once: that takes as long as a write.
        self._lock = FileLock(f"{path}.lock", timeout=LOCK_SECONDS, poll_interval=LOCK_PAUSE)
        self._unsynced_since: float | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, and make file and folder if need be. With no data it is only tried whether that can be
        done.
        """
        # Threads of one process meet at the mutex: who meets another's lock sleeps between attempts.
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
                    # The reason is the write's, whatever becomes of this.
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
        """Force what was appended since the last time onto the disk. A disk that refuses is told in a warning."""
        with self._mutex:
            if self._unsynced_since is None:
                return
            self._unsynced_since = None
        try:
            _force(self.path, os.O_RDWR)
            if os.name == "posix":
                # A file whose folder does not name it yet is lost as a whole.
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
            raise OSError("its file system knows no locks") from error
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
