"""Outcomes of a pool of models: the quality (0 to 1) of each model's answer to each query, and what it costs.

Two formats are read, by the names of the models. CSV with the columns ``query`` and ``NAME_correct`` (true, false or a
number from 0 to 1) and ``NAME_cost`` for each model, and optionally ``group`` and ``id``; JSON lines with ``query``,
``NAME`` and ``NAME_cost``. What else is there is ignored. A model with one price for all queries needs no costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.outcomes.recorded import Floats, Recorded, answers_in, number_of


@dataclass(frozen=True, eq=False)
class Pool(Recorded):
    """``quality`` and ``cost``: float64 [queries, models], the models by rising mean cost.

    ``models``: their names, in this order.
    """

    quality: Floats
    cost: Floats
    models: tuple[str, ...]
    is_pair: ClassVar[bool] = False

    def _columns(self) -> dict[str, Any]:
        return {name: column for name, column in super()._columns().items() if name != "models"}

    @property
    def best(self) -> str:
        """The model that is best alone; of equally good ones the cheapest."""
        return self.models[int(self.quality.mean(axis=0).argmax())]


def load_pool(path: Path, prices: Mapping[str, float | None]) -> Pool:
    """``prices``: model -> what each of its answers costs, None where the file tells. UserError with file, line and
    column.
    """
    rows = answers_in(path, prices)
    cost = [[_cost(row.record, name, price, row.place) for name, price in prices.items()] for row in rows]
    means = np.mean(cost, axis=0)
    if np.ptp(means) <= 0:
        raise UserError(f"{path}: all models cost the same, so that there is no order from the cheapest to the dearest")
    order = np.argsort(means, kind="stable")
    names = tuple(np.array(list(prices))[order].tolist())
    quality = np.array([row.quality for row in rows])
    return Pool(tuple(row.query for row in rows), quality[:, order], np.array(cost)[:, order], names)


def _cost(record: Mapping[str, Any], name: str, price: float | None, place: str) -> float:
    if price is not None:
        return price
    column = f"{name}_cost"
    if record.get(column) in (None, ""):
        raise UserError(f"{place}: there is no {column}; give it for every query, or one price as {name}=PRICE")
    return number_of(record[column], column, place)


def prices_of(texts: Sequence[str]) -> dict[str, float | None]:
    """Model -> price of ``NAME`` or ``NAME=PRICE``. Raises UserError for fewer than two models, or a bad price."""
    found: dict[str, float | None] = {}
    for text in texts:
        name, given, price = text.partition("=")
        if not name or name in found:
            raise UserError(f"--models: {name!r} is there twice" if name else f"--models: {text!r} names no model")
        found[name] = _price(price, text) if given else None
    if len(found) < 2:
        raise UserError(f"--models: there must be two models or more to choose from, not only {texts[0]!r}")
    return found


def _price(text: str, given: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise UserError(f"--models: the price of an answer must be a number from 0, not {given!r}")
    return price
