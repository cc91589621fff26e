"""Checks of the data rows by the plugins that will process them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from core.common.constant import PROCESSOR
from core.common.errors import PLUGIN_ERRORS, Problems, explain
from core.common.utils import plural
from core.testcasecontroller.algorithm import Algorithm
from core.testcasecontroller.module import ModuleConfig
from core.testenvmanager.dataset import Dataset
from sedna.common.utils import copy_tree

SHOWN = 10
"""Maximum number of wrong rows with a message each."""
COUNTED = 1000
"""Number of wrong rows after which no further row is checked."""


def check_rows(algorithms: Sequence[Algorithm], dataset: Dataset, problems: Problems) -> None:
    """Call ``check_rows`` of the dataset processors (without one, of the models) and ``check_chats`` of all modules,
    once per class and set of hyperparameters. Errors go to ``problems``."""
    checked: set[str] = set()
    for algorithm in algorithms:
        for hook, module in (*_readers(algorithm.modules), *(("check_chats", module) for module in algorithm.modules)):
            for point in module.combinations:
                call = f"{hook} {id(module.target)} {point!r}"
                if call not in checked and callable(getattr(module.target, hook, None)):
                    checked.add(call)
                    _check(module, hook, point, dataset, problems)


def describe_rows(algorithms: Sequence[Algorithm], dataset: Dataset, problems: Problems) -> list[str]:
    """The lines of ``describe_rows`` of the dataset processors."""
    lines: dict[str, None] = {}
    readers = [module for algorithm in algorithms for _, module in _readers(algorithm.modules)]
    for module in {id(module.target): module for module in readers}.values():
        if hasattr(module.target, "describe_rows"):
            try:
                lines |= dict.fromkeys(module.target.describe_rows(dataset.placed(module.target)))
            except PLUGIN_ERRORS as error:
                problems.add(module.at.place(), f"{module.type} {module.name}: {explain(error)}")
    return list(lines)


def _readers(modules: Sequence[ModuleConfig]) -> list[tuple[str, ModuleConfig]]:
    processors = [module for module in modules if module.type == PROCESSOR]
    return [("check_rows", module) for module in processors or modules]


def _check(module: ModuleConfig, hook: str, point: dict[str, Any], dataset: Dataset, problems: Problems) -> None:
    found: Iterator[tuple[str, str]]
    try:
        found = iter(getattr(module.target, hook)(copy_tree(point), dataset.placed(module.target)))
        faults = list(islice(found, COUNTED))
    except PLUGIN_ERRORS as error:
        problems.add(module.at.place(), f"{module.type} {module.name}: {explain(error)}")
        return
    for place, reason in faults[:SHOWN]:
        problems.add(place, reason)
    if len(faults) > SHOWN:
        more = plural(len(faults) - SHOWN, "further row") + " at least" * (len(faults) == COUNTED)
        problems.add(dataset.file, f"{more} cannot be used for similar reasons")
