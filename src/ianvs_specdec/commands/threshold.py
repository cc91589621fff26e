"""The arguments that say how a threshold is picked (see ``routing.learned.training``), and the check of shares."""

from __future__ import annotations

import argparse

from ianvs_specdec.common.errors import UserError


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """``keep`` or ``cloud_share``; both are shares from 0 to 1."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--keep", type=float, default=0.97, metavar="SHARE", help="share of the cloud's quality to keep (0.97)"
    )
    group.add_argument("--cloud-share", type=float, metavar="SHARE", help="share of the queries for the cloud")


def check_shares(options: argparse.Namespace, *names: str) -> None:
    """Raise UserError if one of these arguments is given and not from 0 to 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"--{name.replace('_', '-')} must be from 0 to 1, not {value:g}")
