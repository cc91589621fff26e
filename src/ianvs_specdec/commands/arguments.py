"""Arguments and checks that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ianvs_specdec.common.errors import UserError


def option(name: str) -> str:
    """``max_body`` -> ``--max-body``."""
    return f"--{name.replace('_', '-')}"


def check_ranges(options: argparse.Namespace, *rules: tuple[str, bool, str]) -> None:
    """Raise UserError for the first of the rules (argument, whether it is valid, the valid range) that is broken."""
    for name, valid, expected in rules:
        if not valid:
            raise UserError(f"{option(name)} must be {expected}, not {getattr(options, name)}")


def check_out(out: Path) -> None:
    """Raise UserError if the file ``out``, given as --out, cannot be written: a folder, or a missing parent folder."""
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist; make it, or name another file")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give the file to write")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an OSError about ``out`` or a temporary file next to it into a UserError that names ``out``."""
    try:
        yield
    except OSError as error:
        # Errors of a write, such as a full disk, have no file name.
        if error.filename is not None and Path(error.filename).resolve().parent != out.resolve().parent:
            raise
        reason = error.strerror or error
        raise UserError(f"--out {out} cannot be written ({reason}): name a file that can be") from error


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """``--keep`` or ``--cloud-share`` (0 to 1), from which ``routing.learned.training`` derives the threshold."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--keep", type=float, default=0.97, metavar="SHARE", help="share of the cloud's quality to keep (0.97)"
    )
    group.add_argument("--cloud-share", type=float, metavar="SHARE", help="share of the queries for the cloud")


def check_shares(options: argparse.Namespace, *names: str) -> None:
    """Raise UserError if one of these arguments is given and not from 0 to 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{option(name)} must be from 0 to 1, not {value:g}")
