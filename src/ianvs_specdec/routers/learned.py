"""LearnedRouter: what `specdec route train` made decides from the query's text."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.errors import UserError
from ianvs_specdec.learned.folder import TrainedRouter, read_settings
from ianvs_specdec.routers.base import Router
from ianvs_specdec.types import Query


class LearnedRouter(Router):
    """``path``: the router's folder; ``threshold``: from which score on a query goes to the cloud, by default the one
    that was picked in training."""

    concurrent: ClassVar[bool] = True

    def __init__(self, path: str, threshold: float | None = None) -> None:
        self.trained = TrainedRouter.load(_folder(path))
        super().__init__(self.trained.threshold if threshold is None else threshold)
        self._mutex = threading.Lock()

    @staticmethod
    def check(given: Mapping[str, Any]) -> None:
        read_settings(_folder(given["path"]))

    def score(self, query: Query) -> float:
        with self._mutex:
            return float(self.trained.score([query])[0])


def _folder(path: Any) -> Path:
    if not isinstance(path, str) or not path:
        raise UserError(f"path must name a router's folder, not {path!r}; specdec route train makes one", key="path")
    return Path(path)
