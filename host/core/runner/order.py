"""Results that come in any order, given out in the order of their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from core.testcasecontroller.testcase import Progress


class RowFailed(Exception):
    """The row with this index could not be answered; ``fault`` says why."""

    def __init__(self, index: int, fault: Any) -> None:
        super().__init__(f"row {index + 1}: {fault}")
        self.index, self.fault = index, fault


def in_order(
    items: Iterable[tuple[int, Any, Any]], progress: Progress, stop: Callable[[], None]
) -> Generator[Any, None, None]:
    """Each row's result. ``items``: ``(index, result, fault)`` as they come; a fault of None means an answer.

    At a fault ``stop`` is called: ``items`` is to end soon. What it still gives counts, and then RowFailed tells the
    first row that failed, after the results of the rows before it.
    """
    early: dict[int, Any] = {}
    faults: dict[int, Any] = {}
    delivered = 0
    for finished, (index, result, fault) in enumerate(items, 1):
        if fault is not None:
            faults[index] = fault
            stop()
            continue
        early[index] = result
        progress(finished)
        while delivered in early:
            yield early.pop(delivered)
            delivered += 1
    if faults:
        raise RowFailed(*min(faults.items()))
