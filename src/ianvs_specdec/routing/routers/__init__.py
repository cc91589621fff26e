"""Routers (hard example mining): which queries go to the cloud. One file per router, imported when it is chosen.

A router gives each query a score, its estimate of the probability that the edge's answer will not do; the query is hard
when the score reaches the threshold. A router with a constraint decides with the scores of another one.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.routing.routers.base import Modules, Router

ROUTERS = {
    "EdgeOnly": "ianvs_specdec.routing.routers.edge_only",
    "CloudOnly": "ianvs_specdec.routing.routers.cloud_only",
    "RandomRouter": "ianvs_specdec.routing.routers.random_router",
    "OracleRouter": "ianvs_specdec.routing.routers.oracle",
    "LearnedRouter": "ianvs_specdec.routing.routers.learned",
    "LifelongRouter": "ianvs_specdec.routing.routers.lifelong",
    "CascadeRouter": "ianvs_specdec.routing.routers.cascade",
    "PrivacyRouter": "ianvs_specdec.routing.routers.privacy",
    "BudgetRouter": "ianvs_specdec.routing.routers.budget",
    "LatencyRouter": "ianvs_specdec.routing.routers.latency",
    "ResourceRouter": "ianvs_specdec.routing.routers.resources",
}
"""Name in YAML -> module."""


def router(name: str) -> type[Router]:
    if name not in ROUTERS:
        raise unknown("router", name, ROUTERS, key="router")
    return getattr(importlib.import_module(ROUTERS[name]), name)


def check_router(value: Any) -> None:
    """Raise UserError if ``value`` cannot be given to ``build_router``. Loads nothing."""
    kind, hyperparameters = _parse(value)
    kind.check_hyperparameters(hyperparameters)


def check_router_in_test_case(value: Any, modules: Modules) -> None:
    """Raise UserError if that router cannot work beside the other modules of a test case. Loads nothing."""
    kind, hyperparameters = _parse(value)
    kind.check_test_case(hyperparameters, modules)


def build_router(value: Any) -> Router:
    """The router that a constraint is put on, from YAML: a name, or a mapping with ``name`` and hyperparameters."""
    kind, hyperparameters = _parse(value)
    return kind(**hyperparameters)


def _parse(value: Any) -> tuple[type[Router], dict[str, Any]]:
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise UserError(
            f"router must be a router's name, or name: and its hyperparameters, not {value!r}", key="router"
        )
    kind = router(given["name"])
    hyperparameters = {key: item for key, item in given.items() if key != "name"}
    known = inspect.signature(kind).parameters
    for key in hyperparameters:
        if key not in known:
            raise unknown(f"hyperparameter of {given['name']}", key, known, key="router")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in hyperparameters:
            raise UserError(f"router {given['name']}: {key} is missing", key="router")
    return kind, hyperparameters


def __getattr__(name: str) -> Any:
    if name in ROUTERS:
        return router(name)
    if name == "Router":
        from ianvs_specdec.routing.routers.base import Router

        return Router
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
