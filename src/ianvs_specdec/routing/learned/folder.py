"""The folder of a trained router: ``router.json`` (``RouterSettings``), ``training_queries.npy`` (digests, so that
evaluations can exclude these queries) and the classifier's files. It contains no code.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replace_folder, temporary_folder, write_atomically
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.routing.learned.classifier import Classifier, classifier
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.outcomes.recorded import Floats

if TYPE_CHECKING:
    from ianvs_specdec.routing.outcomes.hidden_states import Halves

FORMAT: Literal[1] = 1
FILE = "router.json"
SEEN = "training_queries.npy"
LIFELONG_BASE = "base"
"""The folder of the trained router inside one of kind ``lifelong``."""
MAX_NUMBER = 1e100
"""Largest number in ``router.json``. NaN and infinity are refused."""
MAX_BYTES = 4 << 30
"""Limit of the uncompressed arrays of a file, which may be a thousand times as large as the file."""

Number = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]


@dataclass
class TrainedRouter:
    """``seen``: digests of the training queries, uint64, sorted; ``report``: figures on held-out queries."""

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

    @property
    def probe(self) -> Any:
        return self.classifier.probe

    def score_states(self, queries: Sequence[Query], states: Halves) -> Floats:
        """As ``score``, from the queries' hidden states."""
        return self.calibration(self.classifier.score_states(queries, states))

    def save(self, folder: Path) -> None:
        """Write the folder atomically. An existing router is replaced. Raises UserError for any other folder."""
        check_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as temporary:
            self.classifier.save(temporary)
            np.save(temporary / SEEN, np.unique(self.seen), allow_pickle=False)
            settings = RouterSettings(
                format=FORMAT,
                kind=self.kind,
                label=self.label,
                epsilon=self.epsilon,
                calibration=CalibrationSettings(self.calibration.slope, self.calibration.offset),
                threshold=self.threshold,
                report=dict(self.report),
            )
            write_atomically(temporary / FILE, json.dumps(msgspec.to_builtins(settings), indent=2) + "\n")
            temporary.chmod(0o755)
            replace_folder(temporary, folder)

    @classmethod
    def load(cls, folder: Path) -> TrainedRouter:
        """Raises UserError that names the damaged file."""
        settings = read_settings(folder)
        try:
            found = classifier(settings.kind).load(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(folder, error) from error
        return cls(
            settings.kind,
            found,
            Calibration(settings.calibration.slope, settings.calibration.offset),
            settings.threshold,
            read_seen(folder),
            settings.label,
            settings.epsilon,
            settings.report,
        )


def check_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` is a file, or a folder that contains something other than a router."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).is_file():
        raise UserError(f"--out {folder}: the folder contains something other than a router; name another one")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file: give the folder to write")


def is_probe(folder: Path) -> bool:
    """Whether the router needs the edge's hidden states. Raises UserError as ``read_settings``."""
    kind = read_settings(folder).kind
    return kind == "probe" or (kind == "lifelong" and is_probe(folder / LIFELONG_BASE))


def read_seen(folder: Path) -> NDArray[np.uint64]:
    """Digests of the training queries. Raises UserError. Loads no classifier."""
    try:
        seen: NDArray[np.uint64] = read_array(folder / SEEN).astype(np.uint64)
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    return seen


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder}: the router in it cannot be read: {error}", key="path")


class CalibrationSettings(msgspec.Struct):
    slope: Number
    offset: Number


class RouterSettings(msgspec.Struct, kw_only=True):
    format: Literal[1]
    kind: str
    label: str
    epsilon: Number
    calibration: CalibrationSettings
    threshold: Number
    report: dict[str, Any] = {}


def read_settings(folder: Path) -> RouterSettings:
    """Raises UserError if ``router.json`` is absent or invalid. Loads no classifier."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} is not a router: there is no {FILE}; specdec route train makes one", key="path")
    try:
        return msgspec.convert(read_object(path, key="path"), RouterSettings)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is not as this version writes it: {error}", key="path") from error


def read_array(path: Path) -> NDArray[Any]:
    """The array of a ``.npy`` file. Raises OSError, or ValueError if it is damaged."""
    with _reading(path):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a ``.npz`` file. Raises OSError, or ValueError if it is damaged or has non-finite numbers."""
    # With a path, numpy would leave a file open that is not an archive.
    with path.open("rb") as opened, _reading(path):
        with zipfile.ZipFile(opened) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"it holds {size} bytes of arrays, more than {MAX_BYTES}")
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"the array {name} has numbers that are not finite (NaN or infinity)")
    return arrays


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except MemoryError as error:
        raise ValueError(f"{path.name} claims a shape that does not fit into memory") from error
    except Exception as error:
        # Damaged files raise arbitrary exceptions of the readers, such as zlib.error.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path.name} is damaged: {reason}") from error
