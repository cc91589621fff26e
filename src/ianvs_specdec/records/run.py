"""The run in progress, as the environment that Ianvs sets tells it."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from ianvs_specdec.common.errors import UserError

_PROCESS_RUN = uuid.uuid4().hex


def current_run() -> tuple[str, bool]:
    """The id of the run in progress, and whether answers of earlier runs are to be ignored (``ianvs --fresh``)."""
    run = os.environ.get("IANVS_RUN_ID") or _PROCESS_RUN
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)[:64], os.environ.get("IANVS_FRESH", "") not in ("", "0")


def current_repeat() -> int:
    """Which repeat of the test case is running, counted from 0 (``repeats`` in the job file). A further repeat has
    answers of its own: its number is the entry ``repeat`` of a configuration's value.
    """
    text = os.environ.get("IANVS_REPEAT", "")
    return int(text) if text.isdigit() else 0


def current_concurrency() -> int:
    """How many rows are answered at the same time (``concurrency`` in the job file, of all workers together)."""
    text = os.environ.get("IANVS_CONCURRENCY", "")
    return int(text) if text.isdigit() else 1


def on_worker() -> bool:
    """Whether this process is one of several that answer a test case's rows (``runner: ray`` in the job file)."""
    return bool(os.environ.get("IANVS_WORKER"))


def job_folder() -> Path:
    """The folder of the running job: the parent of ``RESULT_SAVED_URL``, which Ianvs sets before a test case's first
    row.
    """
    result = os.environ.get("RESULT_SAVED_URL")
    if not result:
        raise UserError("RESULT_SAVED_URL is not set: models answer only inside a running Ianvs test case")
    return Path(result).absolute().parent
