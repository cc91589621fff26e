"""The edge's answer for a router that wants it although Ianvs asks the router first (mode mining-then-inference).

The router asks here; the answer waits in the row. The edge model, asked next, gives it as it is; the cloud model, asked
in its place, attaches it to its own. So the edge's work counts, and counts once.

A router that looks at hidden states has the edge read the prompt alone. The edge model, asked next, goes on from there;
the cloud model, asked in its place, drops the answer, and attaches what the edge has done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.plugin.held import HeldAnswer
from ianvs_specdec.plugin.response import Response
from ianvs_specdec.types import Early

KEY = "edge_answer"
"""In the row, then in the cloud's response."""
HELD = "edge_held"
"""In the row: the answer of an edge that has read the prompt."""


Check = Callable[[str, str], None]
"""Called with a model's name and the digest of its files."""


class Edge(Protocol):
    def answer(self, data: Any, *, held: HeldAnswer | None, early: Early | None) -> Response: ...

    def probe(
        self, data: Any, layers: Sequence[int], check: Check, early: Early | None = None
    ) -> HeldAnswer | None: ...

    def backend(self) -> str: ...


_current: weakref.ref[Edge] | None = None


def announce(edge: Edge) -> None:
    """This is the edge model of the test case that begins: Ianvs constructs a test case's modules anew, and they do not
    know each other.
    """
    global _current
    _current = weakref.ref(edge)


def current() -> Edge | None:
    """The edge model of the running test case, if it has one."""
    return None if _current is None else _current()


def ask(row: Any, early: Early | None = None) -> Response:
    """The edge's answer to a row of the dataset processor, from the prompt on if that is read. Where it ends ``early``,
    the cloud is to be asked. Raises UserError where there is no edge model, or no such row.
    """
    response = _asked(row, "the edge's answer").answer(row, held=held(row), early=early)
    row[KEY] = response
    return response


def probe(row: Any, layers: Sequence[int], check: Check, early: Early | None = None) -> HeldAnswer | None:
    """The edge's answer to a row of the dataset processor, held back once its prompt is read; None if the edge has
    none. See ``EdgeModel.probe``. Raises UserError as that does, where there is no edge model, and for anything that is
    no such row, an answer among them.
    """
    if row_of(row) is not row:
        raise UserError(
            "a router that looks at the edge's hidden states decides before the edge answers: set "
            "hard_example_mining_mode to mining-then-inference"
        )
    found = _asked(row, "the edge's hidden states").probe(row, layers, check, early)
    if found is not None:
        row[HELD] = found
    return found


def held(row: Any) -> HeldAnswer | None:
    """The answer that is held back for the row; it is taken out of the row."""
    return row.pop(HELD, None) if isinstance(row, dict) else None


def dropped(row: Any, answer: HeldAnswer) -> Response:
    """What the edge has done where its held answer is not wanted. It was done for the router, so that it counts among
    its seconds."""
    answer.drop()
    count(row, answer.kept.prefill.seconds)
    return answer.unused


def count(row: Any, seconds: float) -> None:
    """Something was done for the router: so long."""
    record = row.get("routing")
    if isinstance(record, dict) and record.get("seconds") is not None:
        record["seconds"] += seconds


def _asked(row: Any, what: str) -> Edge:
    """The edge model that a router may ask ``what`` of this row."""
    edge = current()
    if edge is None or not isinstance(row, dict):
        lack = "an edge model" if edge is None else "the module dataset_processor"
        raise UserError(f"a router that looks at {what} needs {lack} in the test case")
    return edge


def waiting(row: Any) -> Any:
    """The answer that waits in the row, which knows its row; without one, the row."""
    return row.get(KEY, row) if isinstance(row, dict) else row


def taken(row: Any) -> Response | None:
    """The answer that waits in the row; it waits no more."""
    return row.pop(KEY, None) if isinstance(row, dict) else None


def answer_of(result: Mapping[str, Any], edge: Any) -> Any:
    """The edge's answer to a query, where there is one. ``edge`` is what Ianvs says, which knows only of the answers
    that it asked for itself.
    """
    return result.get(KEY) if edge is None else edge
