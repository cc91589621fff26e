"""A trained router on disk: a folder with ``router.json``, ``training_queries.npy`` and the classifier's own files.

``router.json``: ``format`` (1), ``kind`` (see ``classifier.CLASSIFIERS``), ``label`` and ``epsilon`` (see ``labels``),
``calibration`` (``slope``, ``offset``), ``threshold``, and ``report``, what the router did on queries that were held
out. The digests of the training queries are kept so that an evaluation can leave these queries out. Nothing in the
folder is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.replacing import beside, put_in_place
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.documents import read_object
from ianvs_specdec.records.identity import write_atomically
from ianvs_specdec.routing.learned.arrays import read_array
from ianvs_specdec.routing.learned.calibration import Calibration
from ianvs_specdec.routing.learned.classifier import Classifier, classifier
from ianvs_specdec.routing.outcomes.recorded import Floats

FORMAT = 1
FILE = "router.json"
SEEN = "training_queries.npy"
LARGEST = 1e100
"""No number of a router is beyond it; NaN and infinity are not within."""


@dataclass
class TrainedRouter:
    """A classifier, what makes probabilities of its scores, and the threshold from which on a query goes to the cloud.

    ``seen``: digests of the training queries, uint64, sorted.
    """

    kind: str
    classifier: Classifier
    calibration: Calibration
    threshold: float
    seen: NDArray[np.uint64]
    label: str = "gain"
    epsilon: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)

    def score(self, queries: Sequence[Query]) -> Floats:
        """The calibrated probability that each query should go to the cloud, float64 [queries]."""
        return self.calibration(self.classifier.score(queries))

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all. A router that is there already is replaced; no other folder is."""
        check_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with beside(folder) as temporary:
            self.classifier.save(temporary)
            np.save(temporary / SEEN, np.unique(self.seen), allow_pickle=False)
            settings = {
                "format": FORMAT,
                "kind": self.kind,
                "label": self.label,
                "epsilon": self.epsilon,
                "calibration": asdict(self.calibration),
                "threshold": self.threshold,
                "report": dict(self.report),
            }
            write_atomically(temporary / FILE, json.dumps(settings, indent=2) + "\n")
            temporary.chmod(0o755)
            put_in_place(temporary, folder)

    @classmethod
    def load(cls, folder: Path) -> TrainedRouter:
        """Read a folder. Raises UserError that names the file at fault."""
        settings = read_settings(folder)
        try:
            found = classifier(settings["kind"]).load(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(folder, error) from error
        return cls(
            kind=settings["kind"],
            classifier=found,
            calibration=Calibration(*(float(settings["calibration"][name]) for name in ("slope", "offset"))),
            threshold=float(settings["threshold"]),
            seen=read_seen(folder),
            label=settings["label"],
            epsilon=float(settings["epsilon"]),
            report=settings.get("report") or {},
        )


def check_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` cannot be written as a router: a file, or a folder with something else in it."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).is_file():
        raise UserError(f"--out {folder}: the folder holds something else than a router; name another one")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file: give the folder to write")


def read_seen(folder: Path) -> NDArray[np.uint64]:
    """Digests of the queries that the router was trained with. Raises UserError; loads no classifier."""
    try:
        seen: NDArray[np.uint64] = read_array(folder / SEEN).astype(np.uint64)
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    return seen


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder}: the router in it cannot be read: {error}", key="path")


def read_settings(folder: Path) -> dict[str, Any]:
    """What ``router.json`` says. Raises UserError if it is not there or does not make sense; loads no classifier."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(
            f"{folder} is no router's folder: there is no {FILE}; specdec route train makes one", key="path"
        )
    settings = read_object(path, key="path")
    if settings.get("format") != FORMAT:
        raise UserError(f"{path}: not of a format this version reads ({FORMAT})", key="path")
    calibration = settings.get("calibration")
    calibration = calibration if isinstance(calibration, dict) else {}
    texts = [settings.get(name) for name in ("kind", "label")]
    numbers = [settings.get(name) for name in ("threshold", "epsilon")]
    numbers += [calibration.get(name) for name in ("slope", "offset")]
    if not all(isinstance(text, str) for text in texts) or not all(_is_number(number) for number in numbers):
        needed = "kind and label, and as finite numbers threshold, epsilon, and slope and offset of the calibration"
        raise UserError(f"{path}: {needed} are not all there", key="path")
    return settings


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST
