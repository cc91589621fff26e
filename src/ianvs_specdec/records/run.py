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
    """The running repeat of the test case, from 0 (``IANVS_REPEAT``); a further one is part of the configuration."""
    return _number("IANVS_REPEAT", 0)


def current_concurrency() -> int:
    """How many rows are answered at the same time (``concurrency`` in the job file, of all workers together)."""
    return _number("IANVS_CONCURRENCY", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def on_worker() -> bool:
    """Whether this process is one of several that answer a test case's rows (``runner: ray`` in the job file)."""
    return bool(os.environ.get("IANVS_WORKER"))


def job_folder() -> Path:
    """The folder of the running job: the parent of ``RESULT_SAVED_URL``, which Ianvs sets before the first row."""
    result = os.environ.get("RESULT_SAVED_URL")
    if not result:
        raise UserError("RESULT_SAVED_URL is not set: models answer only inside a running Ianvs test case")
    return Path(result).absolute().parent
