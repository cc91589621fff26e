"""The current run, from environment variables that Ianvs sets."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from ianvs_specdec.common.errors import UserError

_PROCESS_RUN = uuid.uuid4().hex


def current_run() -> tuple[str, bool]:
    """The id of the run, and whether earlier answers are ignored (``ianvs --fresh``)."""
    run = os.environ.get("IANVS_RUN_ID") or _PROCESS_RUN
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)[:64], os.environ.get("IANVS_FRESH", "") not in ("", "0")


def current_repeat() -> int:
    """The repeat of the test case, from 0. Repeats from 1 are part of the configuration."""
    return _number("IANVS_REPEAT", 0)


def current_concurrency() -> int:
    """Number of concurrent rows over all workers (``concurrency`` in the job file)."""
    return _number("IANVS_CONCURRENCY", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def on_worker() -> bool:
    """Whether this process is a worker (``runner: ray`` in the job file)."""
    return bool(os.environ.get("IANVS_WORKER"))


def job_folder() -> Path:
    """The folder of the job: the parent of ``RESULT_SAVED_URL``, which Ianvs sets before the first row."""
    result = os.environ.get("RESULT_SAVED_URL")
    if not result:
        raise UserError("RESULT_SAVED_URL is not set: models run only inside a test case of Ianvs")
    return Path(result).absolute().parent
