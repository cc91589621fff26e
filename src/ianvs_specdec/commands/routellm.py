"""Write the records of RouteLLM as a file of outcomes, which specdec route train and route eval read.

The records of the paper's authors (github.com/lm-sys/RouteLLM, routellm/evals/mmlu/responses, Apache-2.0) say for each
of MMLU's 14,042 test questions whether Mixtral-8x7B-Instruct-v0.1 and gpt-4-1106-preview answered it correctly. Give
the folder, or a tar archive of it. The subject becomes the group, to hold out subjects.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from ianvs_specdec.benchmarks import routellm
from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.storage.cells import csv_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", type=Path, metavar="RECORDS", help="folder, tar archive or one CSV file")
    parser.add_argument("--edge", default=routellm.EDGE, metavar="COLUMN", help=f"the edge model ({routellm.EDGE})")
    parser.add_argument("--cloud", default=routellm.CLOUD, metavar="COLUMN", help=f"the cloud model ({routellm.CLOUD})")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="file to write (.csv)")


def run(options: argparse.Namespace) -> int:
    check_out(options.out)
    if options.out.suffix != ".csv":
        raise UserError(f"--out must name a .csv file, which determines the format; got {options.out}")
    records = list(routellm.read(options.records, options.edge, options.cloud))
    names = [field.name for field in dataclasses.fields(routellm.MmluRecord)]
    with writing(options.out):
        write_atomically(options.out, csv_text([names, *map(dataclasses.astuple, records)]))
    edge, cloud = (
        100 * sum(getattr(r, side) for r in records) / len(records) for side in ("edge_correct", "cloud_correct")
    )
    groups = len({record.group for record in records})
    print(f"{options.out}: {len(records)} queries, {groups} group{'s'[: groups != 1]}; ", end="")
    print(f"right: edge {edge:.1f} %, cloud {cloud:.1f} %")
    return 0
