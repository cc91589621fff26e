"""Read benchmark files record by record; write Ianvs data files atomically; checks and argument types."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ianvs_specdec.common.errors import UserError, optional_import
from ianvs_specdec.common.storage.atomic import write_atomically

File = Path | zipfile.Path
"""A file on disk, or one in a zip archive."""

PARQUET_BATCH = 1024
"""Rows of a Parquet file in memory at a time."""

Row = dict[str, Any]
Parsed = TypeVar("Parsed")


def open_text(path: File, errors: str = "strict") -> TextIO:
    """Open a UTF-8 text file, with or without byte order mark, gzip-compressed if its name ends in ``.gz``."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if isinstance(path, zipfile.Path):
        return io.TextIOWrapper(path.open("rb"), encoding="utf-8-sig", errors=errors, newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors=errors, newline="")
    return path.open(encoding="utf-8-sig", errors=errors, newline="")


def number_lines(path: File, lines: Iterable[Parsed]) -> Iterator[tuple[int, Parsed]]:
    """Number the lines from 1. Raises UserError if the file is not UTF-8 text or a damaged archive."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            yield number, line
    except UnicodeDecodeError as error:
        # Raised for a whole block, before its valid lines.
        raise UserError(f"{path}: cannot be read after line {_readable(path)}: not UTF-8 text ({error})") from error
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read after line {number}: {error}") from error


def _readable(path: File) -> int:
    """Number of lines before the first that is not UTF-8."""
    with open_text(path, errors="surrogateescape") as file:
        return next((number for number, line in enumerate(file) if re.search("[\udc80-\udcff]", line)), 0)


def read_json_lines(path: File) -> Iterator[tuple[int, Row]]:
    """Line number (from 1) and object of every non-blank line. Raises UserError with file and line."""
    with open_text(path) as file:
        for number, line in number_lines(path, file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}: expected an object, found {type(row).__name__}")
            yield number, row


def read_csv_lines(path: File) -> Iterator[tuple[str, list[str]]]:
    """``csv_lines`` of a file on disk or in a zip archive."""
    with open_text(path) as file:
        yield from csv_lines(path, file)


def csv_lines(path: File, text: TextIO) -> Iterator[tuple[str, list[str]]]:
    """Place (``file:line``) and fields of every non-empty line."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(text)
    yield from ((f"{path}:{reader.line_num}", fields) for _, fields in number_lines(path, reader) if fields)


def records(path: File) -> Iterator[tuple[str, Row]]:
    """Place and content of every record of a file with named fields: JSON lines (``.jsonl``, ``.jsonl.gz``), a JSON
    array (``.json``), CSV with a header, Parquet. Raises UserError with file and line."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if kind == "jsonl":
        yield from ((f"{path}:{number}", row) for number, row in read_json_lines(path))
    elif kind == "json":
        yield from _json_array(path)
    elif kind == "csv":
        yield from with_header(path, read_csv_lines(path))
    elif kind == "parquet":
        yield from _parquet(path)
    else:
        raise UserError(f"{path}: unknown file type, expected .jsonl, .json, .csv (also .gz) or .parquet")


def with_header(path: File, lines: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, Row]]:
    """The lines as records, named by the first line; an unnamed column of row numbers is named ``""``."""
    header = [name.strip() for name in next(lines, ("", []))[1]]
    if twice := [name for name, times in Counter(header).items() if times > 1 and name]:
        raise UserError(f"{path}: two columns are named {twice[0]!r}: which one is meant?")
    for where, fields in lines:
        if len(fields) != len(header):
            raise UserError(f"{where}: {len(fields)} columns, but the header of {path} names {len(header)}")
        yield where, dict(zip(header, fields, strict=True))


def _json_array(path: File) -> Iterator[tuple[str, Row]]:
    with open_text(path) as file:
        text = "".join(line for _, line in number_lines(path, file))
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: element {number}: expected an object, found {type(row).__name__}")
        yield f"{path}: element {number}", row


def _parquet(path: File) -> Iterator[tuple[str, Row]]:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    with optional_import():
        from pyarrow import ArrowException, parquet
    number = 0
    try:
        with path.open("rb") as file:
            for batch in parquet.ParquetFile(file).iter_batches(PARQUET_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    # A file in an archive raises what the archive's compression raises.
    except (ArrowException, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read after row {number}: {error}") from error


def required(row: Row, key: str, ok: Callable[[Any], bool], what: str, where: str) -> Any:
    """``row[key]``. Raises UserError unless it is there and ``ok``; ``what`` describes valid values."""
    if key not in row:
        raise UserError(f"{where}: the key {key!r} is missing")
    if not ok(row[key]):
        raise UserError(f"{where}: {key!r} must be {what}, not {row[key]!r:.200}")
    return row[key]


def check(hyperparameters: Mapping[str, Any], names: Iterable[str], ok: Callable[[Any], bool], what: str) -> None:
    """Raise UserError with its ``key`` for the first of these hyperparameters that is set and not ``ok``."""
    for name in names:
        value = hyperparameters.get(name)
        if value is not None and not ok(value):
            raise UserError(f"{name} must be {what}, not {value!r}", key=name)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_id(value: Any) -> bool:
    return is_whole(value) or is_text(value)


def sample_evenly(items: Sequence[Parsed], limit: int | None) -> list[Parsed]:
    """``limit`` items, evenly spaced, in order; all without a limit."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]


def positive(text: str) -> int:
    """Argument type: an integer from 1."""
    if non_negative(text) == 0:
        raise ValueError(text)
    return int(text)


def non_negative(text: str) -> int:
    """Argument type: an integer from 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows ``{"question": ..., "answer": ...}`` as a data file of Ianvs."""
    if path.suffix != ".jsonl":
        raise UserError(f"--out must name a .jsonl file, from which Ianvs takes the format, not {path}")
    if not rows:
        raise UserError("the input holds no questions; nothing was written")
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
