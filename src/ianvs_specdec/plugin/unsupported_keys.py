"""What a job file asks for and upstream Ianvs does not do. Upstream says nothing of it and does not tell plugins the
job, but the command line names the file.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from pathlib import Path
from typing import Any

import yaml

log = logging.getLogger(__name__)

DEFAULTS: dict[str, Any] = {"concurrency": 1, "repeats": 1, "runner": "local"}
"""Keys of the job file that our own host reads, and the values with which it does what upstream does."""


def warn_unsupported_keys() -> None:
    """Warn once of what upstream Ianvs ignores in the job file. Does nothing under our own host."""
    if not os.environ.get("IANVS_RUN_ID"):
        _tell(tuple(sys.argv[1:]))


@functools.cache
def _tell(arguments: tuple[str, ...]) -> None:
    job = _job(arguments)
    for key, default in DEFAULTS.items():
        value = job.get(key, default)
        if value not in (default, {"name": default}):
            log.warning("upstream Ianvs ignores %s: %s of the job file; use our own host for it", key, value)


def _job(arguments: tuple[str, ...]) -> dict[str, Any]:
    """The job of the command line's ``-f``; empty where there is none that can be read."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-f", "--benchmarking_config_file")
    try:
        file = parser.parse_known_args(arguments)[0].benchmarking_config_file
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))["benchmarkingjob"]
    except (argparse.ArgumentError, OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
