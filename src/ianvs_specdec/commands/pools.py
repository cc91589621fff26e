"""Arguments of routers that choose from a pool of models (``routing.evaluation.pool``), and what they choose by."""

from __future__ import annotations

import argparse

import numpy as np

from ianvs_specdec.common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME[=PRICE]",
        help="route among these models, two or more; --outcomes needs a column NAME_correct for each, and NAME_cost "
        "for each model without a price per answer",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        nargs="+",
        metavar="X",
        help="minimum score of a query for the cloud, for --scores (default 0.5 if scores are from 0 to 1); "
        "with --models, one for each more expensive model (default: evenly spaced)",
    )


def check(options: argparse.Namespace) -> None:
    """Raise UserError unless the arguments fit each other."""
    if options.models and options.job:
        raise UserError("--models is for --outcomes: a job has an edge and a cloud model")
    if options.threshold is None:
        return
    told = " ".join(f"{threshold:g}" for threshold in options.threshold)
    if not np.isfinite(options.threshold).all():
        raise UserError(f"--threshold must be a number, not {told}")
    wanted = len(options.models) - 1 if options.models else 1
    if len(options.threshold) != wanted or (np.diff(options.threshold) < 0).any():
        many = f"{wanted} increasing numbers, one for each model except the cheapest" if wanted > 1 else "one number"
        raise UserError(f"--threshold must be {many}, not {told}")
    if options.scores is None and not options.models:
        raise UserError("--threshold is for --scores: a trained router has its own")
