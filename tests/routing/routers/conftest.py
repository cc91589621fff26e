"""A trained router with known scores, and a probe of the tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.routing.learned import classifier as kinds
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.learned.probe import ProbeClassifier, Readout
from tests.routing.routers.lifelong_stream import Lengths


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its folder, in a job's folder."""
    monkeypatch.setitem(kinds.CLASSIFIERS, "lengths", f"{Lengths.__module__}:Lengths")
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "job" / "result"))
    monkeypatch.delenv("IANVS_FRESH", raising=False)
    TrainedRouter("lengths", Lengths(), Calibration(), 0.5, np.zeros(1, np.uint64)).save(tmp_path / "base")
    return str(tmp_path / "base")


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """A probe whose scores differ by query."""
    layers, columns = (0, 2), 128
    weights = np.random.default_rng(0).normal(size=columns)
    readout = Readout(np.zeros(columns), np.ones(columns), weights, 0.0)
    classifier = ProbeClassifier(readout, layers, "edge", FileDigests(None).folder(tiny_model))
    TrainedRouter("probe", classifier, Calibration(), 0.5, np.zeros(1, np.uint64)).save(tmp_path / "probe")
    return tmp_path / "probe"
