"""``specdec data``: benchmark files in, data files of Ianvs out. One module per benchmark, named in ``BENCHMARKS``."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

BENCHMARKS = {
    "mmlu": "ianvs_specdec.benchmarks.mmlu",
    "mt_bench": "ianvs_specdec.benchmarks.mt_bench",
    "world": "ianvs_specdec.benchmarks.world.dataset",
}
"""Name -> module with a docstring, ``add_arguments(parser)`` and ``run(options) -> int``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, place in BENCHMARKS.items():
        module: Any = importlib.import_module(place)
        summary = module.__doc__.strip().splitlines()[0]
        sub = benchmarks.add_parser(name, help=summary, description=module.__doc__)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        module.add_arguments(sub)
        sub.set_defaults(convert=module.run)


def run(options: argparse.Namespace) -> int:
    return int(options.convert(options))
