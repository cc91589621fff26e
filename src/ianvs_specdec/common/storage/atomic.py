"""Atomic replacement of files and folders: a reader sees the old version or the new one.

Temporary files of killed processes are removed by the next write of the same path.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = re.compile(r"\.(?P<pid>[0-9]+)\.[^.]*\.tmp")
"""Suffix of temporary names, after a dot and the name of the file."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty temporary file that replaces ``path`` at the end, or is deleted if an exception is raised. A symbolic
    link stays: the file that it points to is replaced. A device or pipe cannot be replaced: it is ``path`` itself.
    Raises OSError."""
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    remove_stale(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix_of(path.name), suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        # mkstemp creates private files.
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by ``text`` in UTF-8. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A temporary folder in the parent of ``path``; deleted at the end unless it has been renamed. Raises OSError."""
    remove_stale(path)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix_of(path.name), suffix=".tmp"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(made: Path, path: Path) -> None:
    """Rename the folder ``made`` to ``path``, replacing what is there. Raises OSError."""
    with temporary_folder(path) as old:
        if path.exists():
            os.replace(path, old / path.name)
        os.replace(made, path)


def prefix_of(name: str) -> str:
    """Prefix of temporary names for ``name``, with the id of this process."""
    return f".{name}.{os.getpid()}."


def remove_stale(path: Path) -> None:
    """Remove the temporary files and folders for ``path`` of ended processes, as far as possible."""
    start = f".{path.name}"
    for name in os.listdir(path.parent or "."):
        match = _TEMPORARY.fullmatch(name[len(start) :]) if name.startswith(start) else None
        if match and not _alive(int(match["pid"])):
            found = path.parent / name
            if found.is_dir():
                # Interrupted, ``replace_folder`` leaves the only copy in such a folder.
                if path.exists() or not (found / path.name).exists():
                    shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Whether the process exists. Only POSIX can check this without ending it."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
