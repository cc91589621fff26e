"""From a grid of values to the list of its points."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any


def get_full_combinations(name_values_list: Iterable[tuple[str, Iterable[Any]]]) -> list[dict[str, Any]]:
    """The Cartesian product of ``(name, values)`` pairs, the last name varying fastest; ``[{}]`` for none."""
    pairs = list(name_values_list)
    names = [name for name, _ in pairs]
    return [dict(zip(names, point, strict=True)) for point in product(*(values for _, values in pairs))]
