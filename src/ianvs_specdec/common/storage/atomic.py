"""Files and folders that are written beside their place and then put there: a reader meets the old one or the new one.

What a killed process has left beside is removed when the next one writes the same.
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
"""What follows the name of the file in that of its temporary one, behind a leading dot."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file in the same folder, private to this process, that takes the place of ``path`` if nothing is raised,
    and is gone otherwise. Raises OSError.
    """
    remove_stale(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix_of(path.name), suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        # mkstemp makes files private; the result is an ordinary file.
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside ``path``, in which to build what is to stand there; it is gone afterwards, if it has not been
    renamed. Raises OSError.
    """
    remove_stale(path)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix_of(path.name), suffix=".tmp"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(made: Path, path: Path) -> None:
    """Rename a folder to ``path``; what stands there is gone only when the new one is there. Raises OSError."""
    with temporary_folder(path) as old:
        if path.exists():
            os.replace(path, old / path.name)
        os.replace(made, path)


def prefix_of(name: str) -> str:
    """How temporary names for ``name`` begin: they tell the process that they belong to."""
    return f".{name}.{os.getpid()}."


def remove_stale(path: Path) -> None:
    """Remove the temporary files and folders for ``path`` whose processes are gone. What cannot be removed stays."""
    start = f".{path.name}"
    for name in os.listdir(path.parent or "."):
        match = _TEMPORARY.fullmatch(name[len(start) :]) if name.startswith(start) else None
        if match and not _alive(int(match["pid"])):
            found = path.parent / name
            if found.is_dir():
                # Killed in between, ``replace_folder`` leaves the only copy there is in such a folder.
                if path.exists() or not (found / path.name).exists():
                    shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Whether there is such a process. Elsewhere than on POSIX this cannot be asked without ending it."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
