"""LearnedRouter: a router of `specdec route train`, by the query's text or the edge's hidden states."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ianvs_specdec.backends import backend, resolve
from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Share, Text, validator
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.routing.learned.folder import TrainedRouter, is_probe, read_settings
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.outcomes.hidden_states import Halves
from ianvs_specdec.routing.routers.base import Decision, Modules, Router

RouterFolder = Annotated[
    Text,
    validator(lambda path: read_settings(Path(path))),
    Field(description="the folder of a router, which specdec route train makes"),
]

UNANSWERED = "the edge gave no complete answer"

EDGE_FILES = FileDigests(None)
"""The test cases of a job have the same edge models, whose files take seconds to read."""


class LearnedRouter(Router):
    """``threshold``: default from training. For a probe the edge first computes the prompt's hidden states."""

    concurrent: ClassVar[bool] = True

    def __init__(self, path: RouterFolder, threshold: Share | None = None) -> None:
        self.check_hyperparameters(locals())
        self.trained = TrainedRouter.load(Path(path))
        super().__init__(self.trained.threshold if threshold is None else threshold)
        self._mutex = threading.Lock()

    @property
    def probes(self) -> bool:
        return self.trained.probe is not None

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        folder = Path(hyperparameters["path"])
        kind, settings = modules.get("edgemodel", (None, {}))
        if not is_probe(folder) or not (isinstance(kind, type) and issubclass(kind, EdgeModel)):
            return
        try:
            backend(resolve(settings.get("backend") or "autoregressive")).check_encode()
        except UserError as error:
            raise UserError(f"the probe in {folder} needs the edge's hidden states, but {error}", key="path") from error
        if (files := Path(str(settings.get("model")))).is_dir():
            probe = TrainedRouter.load(folder).probe
            assert probe is not None
            probe.check_edge(str(files), EDGE_FILES.folder(files))

    def score(self, query: Query) -> float:
        with self._mutex:
            return float(self.trained.score([query])[0])

    def decide(self, data: Any) -> Decision:
        if (probe := self.trained.probe) is None:
            return super().decide(data)
        query = query_of_row(data)
        score, waited = score_encoded(data, probe, lambda states: float(self.trained.score_states([query], states)[0]))
        if score is None:
            return Decision(1.0, True, UNANSWERED, waited=waited)
        return Decision(score, score >= self.threshold, waited=waited)


def score_encoded(data: Any, probe: ProbeClassifier, score: Callable[[Halves], float]) -> tuple[float | None, float]:
    """``score`` of the edge's hidden states (None if the edge fails), and the seconds that are not router time, such as
    loading the model.
    """
    started = time.perf_counter()
    read = edge_first.encode(data, probe.layers, probe.check_edge)
    waited = time.perf_counter() - started
    return (None, waited) if read is None else (score(read.states[None]), waited - read.seconds)
