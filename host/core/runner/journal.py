"""The journal that plugins keep in the job's folder, carried to workers and back.

To the host it is a file of lines, ``journal.jsonl``, to which lines are only ever appended, under the lock
``journal.jsonl.lock``. Workers have copies; what they add comes back and is appended here.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib

from core.common.errors import WorkspaceError
from core.common.files import append_whole, locked, make_folder, writing
from core.common.log import LOGGER

NAME = "journal.jsonl"
BLOCK = 32 << 20
LARGEST = 4 << 30
"""Bytes of a journal that are carried to workers at most."""
LOCK_SECONDS = 60
SYNC_SECONDS = 5.0
"""Seconds after which appended lines are forced onto the disk, by a thread of its own: so much a power cut can cost."""


class Journal:
    """Thread-safe by having one owner: the runner here, the worker there."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, NAME)
        self._read = 0
        self._mutex = threading.Lock()
        self._timer: threading.Timer | None = None
        self._added: set[bytes] = set()

    def news(self) -> list[bytes]:
        """The whole lines that were added since the last call, compressed, in pieces. WorkspaceError if it is too
        large to be carried.
        """
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if size > LARGEST:
            raise WorkspaceError(
                f"{self.path} has {size / 1e9:.1f} GB, more than the {LARGEST / 1e9:.1f} GB that are carried "
                "to workers; move it away, or take the runner local"
            )
        pieces = []
        while lines := self._whole_lines():
            pieces.append(zlib.compress(lines, 1))
        return pieces

    def added(self) -> bytes:
        """The whole lines that were added since the last call, as they are."""
        return self._whole_lines()

    def _whole_lines(self) -> bytes:
        """Up to BLOCK bytes, more where a single line is longer."""
        lines = b""
        if not os.path.exists(self.path):
            return lines
        with open(self.path, "rb") as stream:
            stream.seek(self._read)
            while b"\n" not in lines and (block := stream.read(BLOCK)):
                lines += block
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        return lines

    def extend(self, pieces: tuple[bytes, ...]) -> None:
        """Append what ``news`` of another journal gave; it is no news here."""
        for piece in pieces:
            self._append(zlib.decompress(piece))
        self._read = os.path.getsize(self.path) if os.path.exists(self.path) else 0

    def take(self, lines: bytes) -> None:
        """Append the lines that a worker added, except those that another worker has added before. WorkspaceError if
        they cannot be written.
        """
        new = []
        for line in lines.splitlines(keepends=True):
            mark = hashlib.blake2b(line, digest_size=16).digest()
            if mark not in self._added:
                self._added.add(mark)
                new.append(line)
        self._append(b"".join(new))

    def _append(self, lines: bytes) -> None:
        if not lines:
            return
        make_folder(os.path.dirname(self.path))
        lock = locked(f"{self.path}.lock", LOCK_SECONDS, poll_interval=0.005)
        with lock, writing(self.path), open(self.path, "a+b", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            # A writer was killed in mid-line: its line is ended, so that it alone is lost.
            if size and (stream.seek(size - 1), stream.read(1))[1] != b"\n":
                lines = b"\n" + lines
            append_whole(stream, lines)
        with self._mutex:
            if self._timer is None:
                self._timer = threading.Timer(SYNC_SECONDS, self.sync)
                self._timer.daemon = True
                self._timer.start()

    def sync(self) -> None:
        """Force what was appended since the last time onto the disk. A disk that refuses is told in a warning."""
        with self._mutex:
            timer, self._timer = self._timer, None
        if timer is None or not os.path.exists(self.path):
            return
        timer.cancel()
        try:
            with open(self.path, "r+b") as stream:
                os.fsync(stream.fileno())
        except OSError as error:
            LOGGER.warning("%s may not be on the disk: %s", self.path, error.strerror or error)
