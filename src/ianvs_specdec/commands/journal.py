"""``specdec journal export JOB``: the answers of a job, with their traces and what determined them, as JSON lines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import export_entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser("export", help="write the journal as JSON lines", description=__doc__)
    export.add_argument("job", type=Path, metavar="JOB", help="a job's folder in the workspace, or its journal's file")
    export.add_argument("--out", type=Path, metavar="FILE", help="where to write (standard output)")


def run(options: argparse.Namespace) -> int:
    """Write the lines. Raises UserError where there is no journal."""
    path = options.job / FILE_NAME if options.job.is_dir() else options.job
    if not path.is_file():
        raise UserError(f"{path} is not there: give a job's folder, such as workspace/my-job", key="job")
    if options.out is None:
        for entry in export_entries(path):
            sys.stdout.buffer.write(msgspec.json.encode(entry) + b"\n")
        return 0
    check_out(options.out)
    with writing(options.out), options.out.open("wb") as file:
        for entry in export_entries(path):
            file.write(msgspec.json.encode(entry) + b"\n")
    return 0
