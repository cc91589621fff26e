"""The arguments that say how a threshold is picked (see ``learned.threshold``)."""

from __future__ import annotations

import argparse


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """``keep`` or ``cloud_share``; both are shares from 0 to 1."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--keep", type=float, default=0.97, metavar="SHARE", help="share of the cloud's quality to keep (0.97)"
    )
    group.add_argument("--cloud-share", type=float, metavar="SHARE", help="share of the queries for the cloud")
