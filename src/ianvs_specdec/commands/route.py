"""``specdec route label|train|calibrate|eval``: train and evaluate routers on the outcomes of two models."""

from __future__ import annotations

import argparse
import importlib

ACTIONS = {
    "label": "run both models and write the quality and cost of their answers",
    "train": "train and calibrate a router on such outcomes",
    "calibrate": "calibrate a cascade on such outcomes",
    "eval": "evaluate routers on recorded outcomes: accuracy against cost",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in ACTIONS.items():
        module = importlib.import_module(f"ianvs_specdec.commands.route_{name}")
        sub = actions.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        sub.set_defaults(act=module.run)


def run(options: argparse.Namespace) -> int:
    return int(options.act(options))
