"""The file that a command writes: whether it can be is said before the work, and in the same words after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ianvs_specdec.common.errors import UserError


def check_out(out: Path) -> None:
    """Raise UserError if ``out``, given as --out, can be no file: a folder, or one in a folder that does not exist."""
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist; make it, or name another file")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give the file to write")


@contextmanager
def written(out: Path) -> Iterator[None]:
    """What fails inside because ``out`` cannot be written becomes a UserError that names it, not a temporary file."""
    try:
        yield
    except OSError as error:
        # With no name it is of writing: a full disk, say.
        if error.filename is not None and Path(error.filename).resolve().parent != out.resolve().parent:
            raise
        reason = error.strerror or error
        raise UserError(f"--out {out} cannot be written ({reason}): name a file that can be") from error
