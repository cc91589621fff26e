"""The served test case of a benchmarking job: two models and a router."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import Completion
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, ModelSettings
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.routing.routers.oracle import OracleRouter
from ianvs_specdec.serving.protocol import served_name

if TYPE_CHECKING:
    from core.cmd.job import BenchmarkingJob
    from core.testcasecontroller.algorithm import Algorithm
    from core.testcasecontroller.module import Module

MAX_LISTED = 8
"""Test cases listed in an error message."""
MODES = ("mining-then-inference", "inference-then-mining")
"""Hard example mining modes in which a router decides."""


@dataclass(frozen=True)
class Side:
    """One of the two models, not loaded. ``name``: shown to clients."""

    name: str
    settings: ModelSettings
    backend: str
    llm: LLM

    def cost(self, answer: Completion) -> float | None:
        return self.settings.cost(answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens)


@dataclass(frozen=True)
class Case:
    """``router``: callable that returns whether a row is hard; ``edge_first``: it gets the edge's answer instead of the
    row; ``slo``: objectives of all rows, in seconds."""

    sides: Mapping[str, Side]
    router: Any
    edge_first: bool
    slo: Mapping[str, float]


def read_case(file: str, algorithm: str | None, chosen: Mapping[str, Any]) -> Case:
    """A test case of the job in ``file``: that of ``algorithm`` with the ``chosen`` hyperparameters.

    Hyperparameters are named as on the leaderboard: ``<module type>-<name>``. Loads no model. Raises UserError."""
    job = _job(file)
    mode = job.env.mining_mode
    if mode not in MODES:
        raise UserError(f"hard_example_mining_mode: the mode {mode} has no router; use {' or '.join(MODES)}")
    modules = _test_case(_algorithm(job, algorithm), chosen)
    edge = _side(modules, "edge", EdgeModel)
    cloud = _side(modules, "cloud", CloudModel, edge.backend)
    processor = modules.get("dataset_processor")
    limits = processor.hyperparameters if processor else {}
    router = _router(modules["hard_example_mining"])
    for one in nested_routers(router):
        if isinstance(one, OracleRouter):
            raise UserError(f"{type(one).__name__} needs reference answers, which chats lack: use another router")
        if isinstance(one, CascadeRouter) and (one.early is not None or edge.settings.general.samples > 1):
            names = "CascadeRouter's decide_after, and samples of the edge model,"
            raise UserError(f"{names} are for jobs: on a server, the edge gives one complete answer")
    slo = {name: limits[key] for name in ("ttft", "latency") if limits.get(key := f"slo_{name}")}
    return Case({"edge": edge, "cloud": cloud}, router, mode == MODES[1], slo)


def _router(module: Module) -> Any:
    try:
        return module.create()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"router {module.name} cannot be built: {type(error).__name__}: {error}") from error


def nested_routers(router: Any) -> Iterator[Any]:
    """A router and those inside it, outermost first."""
    yield router
    for inner in (getattr(router, "inner", None), *getattr(router, "signal_routers", {}).values()):
        if inner is not None:
            yield from nested_routers(inner)


def _job(file: str) -> BenchmarkingJob:
    try:
        from core.cmd.job import BenchmarkingJob
        from core.common.errors import ConfigError
    except ImportError as error:
        raise UserError(f"-f reads a job as the ianvs command does ({error}): pip install -e host") from error
    try:
        job = BenchmarkingJob(file)
    except ConfigError as error:
        raise UserError(str(error)) from error
    for warning in job.problems.warnings.lines():
        print(f"specdec serve: warning: {warning}", file=sys.stderr)
    return job


def _algorithm(job: BenchmarkingJob, name: str | None) -> Algorithm:
    known = {algorithm.name: algorithm for algorithm in job.algorithms}
    if name is None and len(known) > 1:
        raise UserError(f"{job.file} has several algorithms: select one with --algorithm: {', '.join(known)}")
    if name is not None and name not in known:
        raise UserError(f"--algorithm: {unknown('algorithm', name, known)}")
    return known[name] if name is not None else job.algorithms[0]


def _test_case(algorithm: Algorithm, chosen: Mapping[str, Any]) -> dict[str, Module]:
    cases, varied = algorithm.test_cases(), algorithm.varied()
    if chosen and not varied:
        raise UserError(f"{algorithm.name} has only one test case: omit --set")
    for name in chosen:
        if name not in varied:
            raise UserError(f"--set: {unknown('hyperparameter of several values', name, varied)}")
    values = [
        {f"{kind}-{name}": value for kind, one in modules.items() for name, value in one.hyperparameters.items()}
        for modules in cases
    ]
    matches = [place for place, one in enumerate(values) if all(one.get(name) == chosen[name] for name in chosen)]
    if len(matches) == 1:
        return cases[matches[0]]
    choices = [" ".join(f"--set '{name}={_shown(values[place].get(name))}'" for name in varied)
               for place in (matches or range(len(cases)))[:MAX_LISTED]]  # fmt: skip
    found = f"{len(cases)} test cases, and {len(matches)} have these values" if chosen else f"{len(cases)} test cases"
    raise UserError(f"{algorithm.name} has {found}; choose one: {' or '.join(choices)}")


def _shown(value: Any) -> str:
    """A value as an argument of ``--set``."""
    return value if isinstance(value, str) else json.dumps(value)


def _side(modules: Mapping[str, Module], side: str, kind: type, edge_backend: str = "") -> Side:
    module = modules[f"{side}model"]
    if not (isinstance(module.target, type) and issubclass(module.target, kind)):
        raise UserError(f"{side}model {module.name} is not a {kind.__name__} of ianvs_specdec, and cannot be served")
    settings = ModelSettings.parse(module.hyperparameters, follows_edge=side == "cloud")
    backend = edge_backend if settings.backend == SAME_AS_EDGE else settings.backend
    llm = settings.checked(backend)
    llm.check_files()
    return Side(served_name(settings.general.model), settings, backend, llm)
