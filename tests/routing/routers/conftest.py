"""A trained router whose scores can be told beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ianvs_specdec.routing.learned import classifier as kinds
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from tests.routing.routers.lifelong_stream import Lengths


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its folder, in a job's folder."""
    monkeypatch.setitem(kinds.CLASSIFIERS, "lengths", f"{Lengths.__module__}:Lengths")
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "job" / "result"))
    monkeypatch.delenv("IANVS_FRESH", raising=False)
    TrainedRouter("lengths", Lengths(), Calibration(), 0.5, np.zeros(1, np.uint64)).save(tmp_path / "base")
    return str(tmp_path / "base")
