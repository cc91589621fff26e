"""The records of RouteLLM (Ong et al. 2024, arXiv 2406.18665): which questions of MMLU two models answered rightly.

Files: ``mmlu_SUBJECT.csv``, as under ``routellm/evals/mmlu/responses`` of github.com/lm-sys/RouteLLM, with the column
``prompt`` and one column for each model, which holds True or False. They may be in a folder or in a tar archive,
compressed or not. Nothing of an archive is written to disk, and no more than ``LARGEST`` bytes of it are read.
"""

from __future__ import annotations

import csv
import io
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import TextIO

from ianvs_specdec.benchmarks.files import Row, guarded, is_text, required, with_header
from ianvs_specdec.errors import UserError, unknown

EDGE, CLOUD = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
LARGEST = 1 << 29
"""Bytes that the members of an archive may have together."""
MEMBERS = 10_000
PREFIX = "mmlu_"
ANSWERS = {"true": 1, "false": 0, "1": 1, "0": 0}


@dataclass(frozen=True)
class Record:
    """A question as it was asked, its subject, and whether each model's answer is right (1 or 0)."""

    query: str
    edge_correct: int
    cloud_correct: int
    group: str
    id: str


def read(path: Path, edge: str = EDGE, cloud: str = CLOUD) -> Iterator[Record]:
    """The records of a folder, an archive or one file, subject by subject; ``edge`` and ``cloud`` name columns.

    Raises UserError with file and line.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}")
    empty = True
    for name, file in _files(path):
        place, subject = path / name if name else path, PurePosixPath(name or path.name).stem.removeprefix(PREFIX)
        for index, (where, row) in enumerate(_rows(place, file)):
            empty = False
            yield _record(row, where, subject, index, (edge, cloud))
    if empty:
        raise UserError(f"{path}: there are no records in it: expected {PREFIX}SUBJECT.csv, in a folder or an archive")


def _record(row: Row, where: str, subject: str, index: int, columns: tuple[str, str]) -> Record:
    query = required(row, "prompt", is_text, "a text", where)
    for column in columns:
        if column not in row:
            raise UserError(f"{where}: {unknown('column', column, row.keys() - {'prompt'})}")
        if str(row[column]).strip().lower() not in ANSWERS:
            raise UserError(f"{where}: {column!r} must be True or False, not {row[column]!r:.40}")
    edge, cloud = (ANSWERS[str(row[column]).strip().lower()] for column in columns)
    return Record(query, edge, cloud, subject, f"{subject}-{index:04d}")


def _rows(place: Path, file: TextIO) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(file)
    lines = ((f"{place}:{reader.line_num}", fields) for _, fields in guarded(place, reader) if fields)
    yield from with_header(place, lines)


def _files(path: Path) -> Iterator[tuple[str, TextIO]]:
    """Name ("" = the path itself) and text of every CSV file, by name."""
    if path.is_dir():
        for below in sorted(path.glob("*.csv")):
            with below.open(encoding="utf-8", newline="") as file:
                yield below.name, file
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            yield "", file
    else:
        for name, content in sorted(_members(path).items()):
            yield name, io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


def _members(path: Path) -> dict[str, bytes]:
    """The CSV files of a tar archive, by name. Links and hidden files are left out."""
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive, start=1):
                total += member.size
                if total > LARGEST or number > MEMBERS:
                    limits = f"{MEMBERS:,} files or {LARGEST >> 20} MB"
                    raise UserError(f"{path}: the archive holds more than {limits}: these are not the records")
                name = PurePosixPath(member.name)
                file = archive.extractfile(member) if member.isreg() and name.suffix == ".csv" else None
                if file is not None and not name.name.startswith("."):
                    found[member.name] = file.read()
    except (tarfile.TarError, zlib.error, LZMAError, OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as a tar archive: {error}") from error
    return found
