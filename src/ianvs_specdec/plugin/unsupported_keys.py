"""Warning about keys of the job file that upstream Ianvs ignores. The command line names the file."""

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
"""Keys of the job file that only our host reads, and their defaults."""


def warn_unsupported_keys() -> None:
    """Warn once under upstream Ianvs."""
    if not os.environ.get("IANVS_RUN_ID"):
        _warn(tuple(sys.argv[1:]))


@functools.cache
def _warn(arguments: tuple[str, ...]) -> None:
    job = _job(arguments)
    for key, default in DEFAULTS.items():
        value = job.get(key, default)
        if value not in (default, {"name": default}):
            log.warning("upstream Ianvs ignores %s: %s of the job file; use our host for it", key, value)


def _job(arguments: tuple[str, ...]) -> dict[str, Any]:
    """The job of the option ``-f``; empty if it cannot be read."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-f", "--benchmarking_config_file")
    try:
        file = parser.parse_known_args(arguments)[0].benchmarking_config_file
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))["benchmarkingjob"]
    except (argparse.ArgumentError, OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
