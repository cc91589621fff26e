"""The edge's answer for a router that wants it although Ianvs asks the router first (mode mining-then-inference).

The router asks here; the answer waits in the row. The edge model, asked next, gives it as it is; the cloud model, asked
in its place, attaches it to its own. So the edge's work counts, and counts once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from ianvs_specdec.errors import UserError
from ianvs_specdec.plugin.response import Response

KEY = "edge_answer"
"""In the row, then in the cloud's response."""


class Edge(Protocol):
    def answer(self, data: Any) -> Response: ...

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


def ask(row: Any) -> Response:
    """The edge's answer to a row of the dataset processor. Raises UserError where there is no edge model, or no such
    row.
    """
    edge = current()
    if edge is None or not isinstance(row, dict):
        lack = "an edge model" if edge is None else "the module dataset_processor"
        raise UserError(f"a router that looks at the edge's answer needs {lack} in the test case")
    response = edge.answer(row)
    row[KEY] = response
    return response


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
