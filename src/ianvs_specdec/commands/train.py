"""``specdec train world|eagle|eagle3|medusa``: the models of the embedded benchmark, and draft heads for any model."""

from __future__ import annotations

import argparse

from ianvs_specdec.commands import train_head, train_world


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    world = kinds.add_parser("world", help="the embedded world: tokenizer, edge model, cloud model")
    train_world.add_arguments(world)
    world.set_defaults(train=train_world.run)
    for name, (summary, minutes) in train_head.KINDS.items():
        head = kinds.add_parser(name, help=summary)
        train_head.add_arguments(head)
        head.set_defaults(train=train_head.run, minutes=minutes)


def run(options: argparse.Namespace) -> int:
    code: int = options.train(options)
    return code
