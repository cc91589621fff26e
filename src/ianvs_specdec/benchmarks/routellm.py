"""The records of RouteLLM (Ong et al. 2024, arXiv 2406.18665): which MMLU questions two models answered correctly.

Files: ``mmlu_SUBJECT.csv``, as under ``routellm/evals/mmlu/responses`` of github.com/lm-sys/RouteLLM, with the column
``prompt`` and one column per model (True or False), in a folder or a tar archive, compressed or not. Archives are read
in memory, at most ``MAX_BYTES`` bytes.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import TextIO

from ianvs_specdec.benchmarks.files import Row, csv_lines, is_text, open_text, required, with_header
from ianvs_specdec.common.errors import UserError, unknown

EDGE, CLOUD = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
MAX_BYTES = 1 << 29
"""Maximum total size of an archive's members in bytes."""
MEMBERS = 10_000
PREFIX = "mmlu_"
ANSWERS = {"true": 1, "false": 0, "1": 1, "0": 0}


@dataclass(frozen=True)
class MmluRecord:
    """A prompt, its subject, and whether each model's answer is correct (1 or 0)."""

    query: str
    edge_correct: int
    cloud_correct: int
    group: str
    id: str


def read(path: Path, edge: str = EDGE, cloud: str = CLOUD) -> Iterator[MmluRecord]:
    """The records of a folder, an archive or one file; ``edge`` and ``cloud`` name columns. Raises UserError with file
    and line."""
    if not path.exists():
        raise UserError(f"there is no file {path}")
    empty = True
    for file, text in _files(path):
        subject = file.stem.removeprefix(PREFIX)
        for index, (where, row) in enumerate(with_header(file, csv_lines(file, text))):
            empty = False
            yield _record(row, where, subject, index, (edge, cloud))
    if empty:
        raise UserError(f"{path}: there are no records in it: expected {PREFIX}SUBJECT.csv, in a folder or an archive")


def _record(row: Row, where: str, subject: str, index: int, columns: tuple[str, str]) -> MmluRecord:
    query = required(row, "prompt", is_text, "a text", where)
    right = []
    for column in columns:
        if column not in row:
            raise UserError(f"{where}: {unknown('column', column, row.keys() - {'prompt'})}")
        if (answer := ANSWERS.get(str(row[column]).strip().lower())) is None:
            raise UserError(f"{where}: {column!r} must be True or False, not {row[column]!r:.40}")
        right.append(answer)
    return MmluRecord(query, right[0], right[1], subject, f"{subject}-{index:04d}")


def _files(path: Path) -> Iterator[tuple[Path, TextIO]]:
    """Place and text of every CSV file, by name."""
    if path.is_dir() or path.suffix == ".csv":
        for file in sorted(path.glob("*.csv")) if path.is_dir() else [path]:
            with open_text(file) as text:
                yield file, text
    else:
        for name, content in sorted(_members(path).items()):
            yield path / name, io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


def _members(path: Path) -> dict[str, bytes]:
    """Name -> content of the CSV files in a tar archive, without links and hidden files."""
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive, start=1):
                total += member.size
                if total > MAX_BYTES or number > MEMBERS:
                    limits = f"{MEMBERS:,} files or {MAX_BYTES >> 20} MB"
                    raise UserError(f"{path}: the archive holds more than {limits}: these are not the records")
                name = PurePosixPath(member.name)
                file = archive.extractfile(member) if member.isreg() and name.suffix == ".csv" else None
                if file is not None and not name.name.startswith("."):
                    found[member.name] = file.read()
    except (tarfile.TarError, zlib.error, LZMAError, OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as a tar archive: {error}") from error
    return found
