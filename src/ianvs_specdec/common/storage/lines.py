"""A file of lines that are only ever appended. Journals and logs of feedback are written through it, and nothing else.

An append is written whole or not at all, whatever the disk says. A process that is killed leaves at most one torn line,
which the next append ends, so that it alone is lost. What was appended reaches the disk within ``SYNC_SECONDS``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

LOCK_SECONDS = 60
LOCK_PAUSE = 0.005
SYNC_SECONDS = 5.0
"""Seconds after which appended lines are forced onto the disk: so much a power cut can cost. A thread of its own does
it, so that no answer waits for the disk.
"""


class LineFile:
    """Thread-safe; several processes may append to the same file. Every method raises OSError with a ``strerror``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = False
        self._mutex = threading.Lock()
        # Made once: that takes as long as a write.
        self._lock = FileLock(f"{path}.lock", timeout=LOCK_SECONDS, poll_interval=LOCK_PAUSE)
        self._timer: threading.Timer | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, and make file and folder if need be. With no data it is only tried whether that can be
        done.
        """
        # Threads of one process meet at the mutex: who meets another's lock sleeps between attempts.
        with self._mutex:
            if not self._made:
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
            self._made = bool(data)
            if data and self._timer is None:
                self._timer = threading.Timer(SYNC_SECONDS, self.sync)
                self._timer.daemon = True
                self._timer.start()

    def sync(self) -> None:
        """Force what was appended since the last time onto the disk. A disk that refuses is told in a warning."""
        with self._mutex:
            timer, self._timer = self._timer, None
        if timer is None:
            return
        timer.cancel()
        try:
            _force(self.path, os.O_RDWR)
            if os.name == "posix":
                # A file whose folder does not name it yet is lost as a whole.
                _force(self.path.parent, os.O_RDONLY)
        except FileNotFoundError:
            return
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
