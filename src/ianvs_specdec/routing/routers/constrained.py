"""The common base of routers with a constraint: another router scores the query, the constraint may overrule it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from ianvs_specdec.common.settings import validator
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers import build_router, check_router, check_router_in_test_case
from ianvs_specdec.routing.routers.base import Decision, Modules, Router

PRIVATE = "private"
"""Name, among the details of a privacy router's decision, of the kinds of personal data that were found."""


def _check_router(value: Any) -> None:
    if not isinstance(value, Router):
        check_router(value)


AnyRouter = Annotated[Any, validator(_check_router)]
"""A router, its name, or a mapping with ``name`` and hyperparameters."""


class ConstrainedRouter(Router):
    """``router``: the router to constrain, which may have a constraint itself. The outermost constraint has precedence,
    except that a private query stays on the edge.

    Reasons that were overruled are in the details under ``overruled``, the innermost first.
    """

    concurrent: ClassVar[bool] = True
    """Several threads may ask it at once; a router inside that is not ``concurrent`` is asked by one at a time."""

    def __init__(self, router: AnyRouter = "RandomRouter") -> None:
        self.inner = router if isinstance(router, Router) else build_router(router)
        super().__init__(self.inner.threshold)
        # Time that an oracle spends on answers is no overhead of what is around it either.
        self.timed = self.inner.timed  # type: ignore[misc]
        self._asking = nullcontext() if getattr(self.inner, "concurrent", False) else threading.Lock()

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        check_router_in_test_case(hyperparameters.get("router", "RandomRouter"), modules)

    def score(self, query: Query) -> float:
        with self._asking:
            return self.inner.score(query)

    def ask(self, data: Any) -> Decision:
        with self._asking:
            return self.inner.checked(data)

    def cleanup(self) -> None:
        """Called by Ianvs at the end of a test case: hand it on."""
        if hasattr(self.inner, "cleanup"):
            self.inner.cleanup()


def overrule(decision: Decision, hard: bool, reason: str, **details: Any) -> Decision:
    """The decision with another outcome, or with another reason for the same one."""
    kept = dict(decision.details)
    if decision.reason:
        kept["overruled"] = [*kept.get("overruled", ()), decision.reason]
    return replace(decision, hard=hard, reason=reason, details={**kept, **details})
