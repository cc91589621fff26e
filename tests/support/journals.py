"""What a job's journal holds, as ``specdec journal export`` writes it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import export_entries


def entries(job: Path) -> list[dict[str, Any]]:
    """Configurations, machines, then answers and failures, oldest first."""
    return list(export_entries(job / FILE_NAME))


def answers(job: Path) -> list[dict[str, Any]]:
    return [entry for entry in entries(job) if "answer" in entry]


def text(job: Path) -> str:
    return "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries(job))


def change(job: Path, statement: str) -> None:
    """Do to a journal what SQL says."""
    with closing(sqlite3.connect(job / FILE_NAME)) as connection, connection:
        connection.execute(statement)
