"""``specdec train world``: reproduce the tokenizer and the two models of the embedded benchmark."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ianvs_specdec.common.errors import UserError

SIZES = ("cloud", "edge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for the models (OUT/edge, OUT/cloud)")
    parser.add_argument(
        "--work", type=Path, help="folder for checkpoints (default OUT/.training); a second run resumes from it"
    )
    parser.add_argument(
        "--only", choices=SIZES, help="train one of the two; the edge model learns from the cloud model"
    )
    parser.add_argument(
        "--cloud", type=Path, metavar="DIR", help="the cloud model that the edge learns from (default: OUT/cloud)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="time budget for each model (default: the recipe's; the edge's ends when its loss stands still)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def run(options: argparse.Namespace) -> int:
    if options.minutes is not None and options.minutes <= 0:
        raise UserError("--minutes must be more than 0")
    from ianvs_specdec.training import world

    world.run(options, (options.only,) if options.only else SIZES)
    return 0
