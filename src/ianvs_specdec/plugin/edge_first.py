"""The edge's answer for a router that wants it although Ianvs asks the router first (mode mining-then-inference).

The router asks here; the answer waits in the row. The edge model, asked next, gives it as it is; the cloud model, asked
in its place, attaches it to its own. So the edge's work counts, and counts once.

A router that looks at hidden states has the edge read the prompt. What that took waits in the row as well, and is
counted with the edge's answer, or alone where the edge gives none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.requests import EarlyExit
from ianvs_specdec.records.response import EDGE_ANSWER, Response

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFILL = "edge_read"
"""In the row: the response of an edge that has only read the prompt."""


ModelCheck = Callable[[str, str], None]
"""Called with a model's name and the digest of its files."""


class Encoding(NamedTuple):
    """A prompt that the edge has read: pooled hidden states, float16 [layers * 2 * hidden], and the ``response`` of an
    edge that does no more."""

    states: NDArray[np.float16]
    response: Response

    @property
    def seconds(self) -> float:
        return float(self.response["prefill"]["seconds"])


class Edge(Protocol):
    def answer(self, data: Any, *, early: EarlyExit | None) -> Response: ...

    def encode(self, data: Any, layers: Sequence[int], check: ModelCheck) -> Encoding | None: ...

    def backend(self) -> str: ...


_current: weakref.ref[Edge] | None = None


def set_current(edge: Edge) -> None:
    """Set the edge model of the test case that begins: Ianvs gives modules no references to each other."""
    global _current
    _current = weakref.ref(edge)


def current() -> Edge | None:
    """The edge model of the running test case, if it has one."""
    return None if _current is None else _current()


def request_answer(row: Any, early: EarlyExit | None = None) -> Response:
    """The edge's answer to a row of the dataset processor; the cloud is asked where it stops ``early``. Raises
    UserError without an edge model or such a row."""
    response = _asked(row, "the edge's answer").answer(row, early=early)
    row[EDGE_ANSWER] = response
    return response


def encode(row: Any, layers: Sequence[int], check: ModelCheck) -> Encoding | None:
    """What the edge makes of the prompt of a row of the dataset processor; None if it cannot read it. See
    ``EdgeModel.encode``. Raises UserError as that does, where there is no edge model, and for anything that is no such
    row, an answer among them.
    """
    if row_of(row) is not row:
        raise UserError(
            "a router that looks at the edge's hidden states decides before the edge answers: set "
            "hard_example_mining_mode to mining-then-inference"
        )
    found = _asked(row, "the edge's hidden states").encode(row, layers, check)
    if found is not None:
        row[PREFILL] = found.response
    return found


def take_prefill(row: Any) -> Response | None:
    """What the edge did that has only read the prompt; it is taken out of the row."""
    return row.pop(PREFILL, None) if isinstance(row, dict) else None


def _asked(row: Any, what: str) -> Edge:
    """The edge model that a router may ask ``what`` of this row."""
    edge = current()
    if edge is None or not isinstance(row, dict):
        lack = "an edge model" if edge is None else "the module dataset_processor"
        raise UserError(f"a router that looks at {what} needs {lack} in the test case")
    return edge


def pending_answer(row: Any) -> Any:
    """The answer that waits in the row, which knows its row; without one, the row."""
    return row.get(EDGE_ANSWER, row) if isinstance(row, dict) else row


def take_answer(row: Any) -> Response | None:
    """The answer that waits in the row; it waits no more."""
    return row.pop(EDGE_ANSWER, None) if isinstance(row, dict) else None
