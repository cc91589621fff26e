"""Reading benchmark files line by line, writing Ianvs data files whole or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import write_atomically

Item = TypeVar("Item")


def open_text(path: Path) -> TextIO:
    """Open a UTF-8 text file, compressed if its name ends in ``.gz``."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def guarded(path: Path, lines: Iterable[Item]) -> Iterator[tuple[int, Item]]:
    """Number the lines from 1; a file that is not readable UTF-8 text, or not gzip, becomes a UserError."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            yield number, line
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: cannot be read after line {number}: {error}") from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every line that is not blank. Raises UserError with file and line."""
    with open_text(path) as file:
        for number, line in guarded(path, file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}: expected an object, found {type(row).__name__}")
            yield number, row


def required(row: dict[str, Any], key: str, ok: Callable[[Any], bool], what: str, where: str) -> Any:
    """``row[key]``, checked. Raises UserError that says where and what is expected."""
    if key not in row:
        raise UserError(f"{where}: the key {key!r} is missing")
    if not ok(row[key]):
        raise UserError(f"{where}: {key!r} must be {what}, not {row[key]!r}")
    return row[key]


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """``limit`` of the items, spread evenly over all of them in order; all without a limit."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]


def positive(text: str) -> int:
    """An argument that is a whole number from 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows ``{"question": ..., "answer": ...}`` as a data file of Ianvs."""
    if path.suffix != ".jsonl":
        raise UserError(f"--out must name a .jsonl file, by which Ianvs knows the format; got {path}")
    if not rows:
        raise UserError("the input holds no questions; nothing was written")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
