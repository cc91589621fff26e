"""Atomic writes, and errors that name the reason and the remedy."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from core.common.errors import WorkspaceError

_NO_ROOM = "free some space"
_NO_ACCESS = "name another workspace in the job file"
_ADVICE = {
    "ENOSPC": f"the disk is full: {_NO_ROOM}",
    "EDQUOT": f"your disk quota is used up: {_NO_ROOM}",
    "EROFS": f"the file system is read-only: {_NO_ACCESS}",
    "EACCES": f"no permission: {_NO_ACCESS}",
    "EPERM": f"no permission: {_NO_ACCESS}",
    "ENOENT": f"no file can be created there: {_NO_ACCESS}",
    "ENOTDIR": f"a part of the path is a file, not a folder: {_NO_ACCESS}",
    "EEXIST": f"a file exists where a folder is expected: {_NO_ACCESS}",
}


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert an OSError to a WorkspaceError with path, reason and remedy."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        advice = _ADVICE.get(name, error.strerror or str(error))
        raise WorkspaceError(f"cannot write {path}: {advice}, then run the same command again") from error


def make_folder(path: str) -> None:
    with writing(path):
        os.makedirs(path, exist_ok=True)


def check_writable(folder: str) -> None:
    """Raise WorkspaceError if the folder, or a file in it, cannot be created."""
    there = os.path.abspath(folder)
    while not os.path.exists(there) and os.path.dirname(there) != there:  # a drive may not exist on Windows
        there = os.path.dirname(there)
    with writing(folder), tempfile.TemporaryFile(dir=there):
        pass


def append_whole(stream: BinaryIO, data: bytes) -> None:
    """Append to an unbuffered file all or nothing: a full disk leaves no partial line. Raises OSError."""
    size = stream.seek(0, os.SEEK_END)
    try:
        if stream.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            stream.truncate(size)
        raise


def write_atomic(path: str, text: str) -> None:
    """Replace a file atomically, even in a crash. Raises WorkspaceError."""
    with writing(path):
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
