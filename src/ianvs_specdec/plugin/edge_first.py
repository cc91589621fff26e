"""Edge answers and hidden states for routers in mode mining-then-inference, where Ianvs calls the router first.

The router requests the edge's answer here, and the row stores it. The edge model then returns it unchanged; the cloud
model attaches it to its own answer. The edge's work is thus counted exactly once. The same holds for a prefill: the
prompt that the edge computes for a router that reads hidden states.
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

PREFILL = "edge_prefill"
"""Key in the row: the response of an edge that only computed the prompt."""

ModelCheck = Callable[[str, str], None]
"""Called with a model's name and the digest of its files."""


class Encoding(NamedTuple):
    """Pooled hidden states of a prompt, float16 [layers * 2 * hidden], and the ``response`` of an edge that computes
    nothing else."""

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
    """Set the edge model of the test case: Ianvs gives modules no references to each other."""
    global _current
    _current = weakref.ref(edge)


def current() -> Edge | None:
    """The edge model of the running test case, if any."""
    return None if _current is None else _current()


def request_answer(row: Any, early: EarlyExit | None = None) -> Response:
    """The edge's answer to a row of the dataset processor; the cloud answers if it stops ``early``. Raises UserError
    without an edge model or such a row."""
    response = _edge_for(row, "the edge's answer").answer(row, early=early)
    row[EDGE_ANSWER] = response
    return response


def encode(row: Any, layers: Sequence[int], check: ModelCheck) -> Encoding | None:
    """``EdgeModel.encode`` for a row of the dataset processor. Raises UserError as that does, without an edge model,
    and for anything else than such a row, for example an answer."""
    if row_of(row) is not row:
        raise UserError(
            "a router that reads the edge's hidden states decides before the edge answers: set "
            "hard_example_mining_mode to mining-then-inference"
        )
    found = _edge_for(row, "the edge's hidden states").encode(row, layers, check)
    if found is not None:
        row[PREFILL] = found.response
    return found


def take_prefill(row: Any) -> Response | None:
    """Remove and return the prefill of the row."""
    return row.pop(PREFILL, None) if isinstance(row, dict) else None


def _edge_for(row: Any, what: str) -> Edge:
    """The edge model for a request of ``what`` for this row."""
    edge = current()
    if edge is None or not isinstance(row, dict):
        missing = "an edge model" if edge is None else "the module dataset_processor"
        raise UserError(f"a router that reads {what} needs {missing} in the test case")
    return edge


def pending_answer(row: Any) -> Any:
    """The stored edge answer of the row, or the row without one."""
    return row.get(EDGE_ANSWER, row) if isinstance(row, dict) else row


def take_answer(row: Any) -> Response | None:
    """Remove and return the stored edge answer of the row."""
    return row.pop(EDGE_ANSWER, None) if isinstance(row, dict) else None
