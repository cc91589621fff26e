"""The benchmarks of ``specdec data prepare``, and their categories."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Protocol

from ianvs_specdec.benchmarks import cmmlu, gsm8k, hf, humaneval, mmlu, mt_bench, spec_bench
from ianvs_specdec.benchmarks.files import Row
from ianvs_specdec.benchmarks.source import Inputs, Source
from ianvs_specdec.benchmarks.world import dataset as world


class Benchmark(Protocol):
    """Interface of a benchmark's module, whose docstring is its help text. ``CATEGORIES``: sets of groups with
    leaderboard columns; ``rows`` builds the data file's rows or raises UserError with file and line."""

    @property
    def NAME(self) -> str: ...

    @property
    def SOURCE(self) -> Source: ...

    @property
    def CATEGORIES(self) -> Mapping[str, frozenset[str]]: ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def rows(self, inputs: Inputs, options: argparse.Namespace) -> list[Row]: ...


_MODULES: tuple[Benchmark, ...] = (mt_bench, mmlu, cmmlu, gsm8k, humaneval, spec_bench, hf, world)

BENCHMARKS: dict[str, Benchmark] = {module.NAME: module for module in _MODULES}


def categories() -> dict[str, frozenset[str]]:
    """Category -> groups of all benchmarks; categories of the same name are merged."""
    found: dict[str, frozenset[str]] = {}
    for benchmark in BENCHMARKS.values():
        for name, groups in benchmark.CATEGORIES.items():
            found[name] = found.get(name, frozenset()) | groups
    return found
