"""Kind ``probe``: a small classifier on the edge's hidden states of a prompt, pooled as in ``types.POOLING``
(ConsRoute, arXiv 2603.21237; ProbeDirichlet, arXiv 2602.11877).

Cross-validation selects the layers (the best one, and others as long as they improve the probe), and whether to use a
hidden layer.

Files: ``probe.json`` (``ProbeSettings``); ``probe.npz`` with the fields of a ``Readout``: ``constant`` float64, the
others float32, ``inner`` and ``bias`` only with a hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, described_as
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.routing.learned import logistic
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.folder import read_arrays
from ianvs_specdec.routing.outcomes.hidden_states import Halves, RecordedStates
from ianvs_specdec.routing.outcomes.recorded import Floats

KIND = "probe"
SETTINGS, ARRAYS = "probe.json", "probe.npz"

PARTS = 4
"""Number of folds of the cross-validation."""
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FIRST_RIDGE = 0.1
"""Regularization for the comparison of layers."""
MAX_LAYERS = 3
GAIN = 0.002
"""Minimum decrease of the cross-entropy (nats per query) for another layer, about the deviation of folds."""
ENOUGH = 4_000
"""Maximum number of queries for the selection of layers and regularization."""
UNITS, MAX_UNITS = 128, 65_536
MATRICES, WIDE = ("mean", "scale", "weights"), ("inner", "bias")
"""Arrays of every probe, and those of a hidden layer."""

FLAT = 1e-6
"""Lower bound of standard deviations and norms."""
EPOCHS = 30
"""Twice as many do not improve a probe of 19,500 queries. Half as many are slightly worse."""
LEAST_STEPS = 300
"""Minimum number of steps, for small training sets."""
BATCH = 256
"""Queries per step."""
LEARNING_RATE = 2e-3
"""Maximum of the one-cycle schedule."""
DROPOUT = 0.2
WEIGHT_DECAY = 0.05
"""Regularization for a few thousand queries. Values up to 0.4 and 0.3 have little effect."""

Layer = Annotated[int, Field(ge=0)]
Layers = Annotated[list[Layer], Field(min_length=1), described_as("a list of layers, as [1, 2]")]
Fit = Callable[[Floats, Floats], "Readout"]
"""States [queries, columns], labels [queries] -> readout."""


@dataclass(frozen=True, eq=False)
class Readout:
    """``sigmoid(weights @ h + constant)``, where ``h`` is ``(x - mean) / scale`` or, with a hidden layer,
    ``relu(inner @ ((x - mean) / scale) + bias)``.

    float64: ``mean`` and ``scale`` [columns], ``weights`` [columns] or [units], ``inner`` [units, columns], ``bias``
    [units]. Raises ValueError for inconsistent shapes.
    """

    mean: Floats
    scale: Floats
    weights: Floats
    constant: float
    inner: Floats | None = None
    bias: Floats | None = None

    def __post_init__(self) -> None:
        units = self.mean.shape if self.inner is None else self.inner.shape[:1]
        wide = self.inner is None or self.inner.shape[1:] == self.mean.shape
        biased = self.bias is None if self.inner is None else self.bias is not None and self.bias.shape == units
        if self.mean.ndim != 1 or self.scale.shape != self.mean.shape or self.weights.shape != units:
            raise ValueError("mean, scale and weights do not fit each other")
        if not wide or not biased:
            raise ValueError("inner and bias do not fit each other, or the mean")
        if self.scale.min(initial=1.0) <= 0:
            raise ValueError("a scale is not above 0")

    def standardized(self, x: Floats) -> Floats:
        """float64 [queries, columns]."""
        return (x - self.mean) / self.scale

    def __call__(self, x: Floats) -> Floats:
        """float64 [queries], from 0 to 1, of [queries, columns]."""
        seen = self.standardized(x)
        if self.inner is not None and self.bias is not None:
            seen = np.maximum(seen @ self.inner.T + self.bias, 0.0)
        return logistic.sigmoid(seen @ self.weights + self.constant)


def _moments(x: Floats) -> tuple[Floats, Floats]:
    return x.mean(axis=0), np.maximum(x.std(axis=0), FLAT)


def fit_linear(x: Floats, targets: Floats, ridge: float) -> Readout:
    """``x``: float64 [queries, columns]; ``targets``: [queries], 0 to 1."""
    mean, scale = _moments(x)
    return Readout(mean, scale, *logistic.fit((x - mean) / scale, targets, ridge=ridge))


def fit_hidden(x: Floats, targets: Floats, units: int, seed: int) -> Readout:
    """As ``fit_linear``, with a hidden layer, trained by AdamW with dropout."""
    import torch
    from torch import nn

    mean, scale = _moments(x)
    given, labels = torch.from_numpy(((x - mean) / scale).astype(np.float32)), torch.from_numpy(targets).float()
    # Initialization and dropout use the global generator of torch.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner, outer = nn.Linear(x.shape[1], units), nn.Linear(units, 1)
        model = nn.Sequential(nn.Dropout(DROPOUT), inner, nn.ReLU(), nn.Dropout(DROPOUT), outer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        batches = math.ceil(len(x) / BATCH)
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / batches))
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * batches)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = nn.functional.binary_cross_entropy_with_logits(model(given[rows])[:, 0], labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rates.step()

    def array(tensor: torch.Tensor) -> NDArray[np.float64]:
        return tensor.detach().double().numpy()

    return Readout(mean, scale, array(outer.weight)[0], outer.bias.item(), array(inner.weight), array(inner.bias))


class ProbeOptions(Settings):
    noun = "option of probe"

    layers: Layers | None = None
    units: Annotated[int, Field(ge=0, le=MAX_UNITS)] | None = Field(None, description="of a hidden layer, 0 for none")


class ProbeClassifier(Classifier):
    """``score_states`` scores hidden states; ``score`` needs ``set_states`` for those of its queries first."""

    Options: ClassVar[type[Settings]] = ProbeOptions

    def __init__(
        self, readout: Readout, layers: Sequence[int], model: str, digest: str, states: RecordedStates | None = None
    ) -> None:
        self._readout, self.layers, self.model, self.digest = readout, tuple(layers), model, digest
        self._states = states

    @classmethod
    def fit(
        cls,
        queries: Sequence[Query],
        targets: Floats,
        *,
        seed: int = 0,
        states: RecordedStates | None = None,
        layers: list[int] | None = None,
        units: int | None = None,
        **_: Any,
    ) -> ProbeClassifier:
        if states is None:
            raise UserError("a probe is trained on the edge's hidden states: give --edge FILE with the edge's settings")
        ProbeOptions.parse({"layers": layers, "units": units})
        if layers is not None and not {*layers} <= {*states.layers}:
            raise UserError(f"layers must be some of 0 to {states.layers[-1]} in a list, as [1, 2], not {layers!r}")
        order = np.random.default_rng(seed).permutation(len(queries))
        parts, few = order % PARTS, order[:ENOUGH]
        of_all, index = states.of(queries, states.layers), {layer: i for i, layer in enumerate(states.layers)}

        def columns(chosen: Sequence[int]) -> Floats:
            return _columns(of_all[:, [index[layer] for layer in chosen]])

        if layers is None:
            linear = _linear(FIRST_RIDGE)
            layers = _chosen(states.layers, lambda some: _loss(columns(some)[few], targets[few], parts[few], linear))
        readout = _fitted(columns(layers), targets, parts, few, units, seed)
        return cls(readout, layers, states.model, states.digest, states)

    @property
    def probe(self) -> ProbeClassifier:
        return self

    def score(self, queries: Sequence[Query]) -> Floats:
        return self.score_states(queries, self.states_of(queries))

    def score_states(self, queries: Sequence[Query], states: Halves) -> Floats:
        columns = _columns(states)
        if columns.shape[1] != len(self._readout.mean):
            raise UserError(f"the probe was trained with another model ({self.model}): its states have another width")
        return self._readout(columns)

    def directions(self, states: Halves) -> Floats:
        """The standardized states as unit vectors, float64 [queries, columns]."""
        found = self._readout.standardized(_columns(states))
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), FLAT)

    def states_of(self, queries: Sequence[Query]) -> Halves:
        if self._states is None:
            raise UserError("a probe needs the edge's hidden states, not the query: give --edge FILE with its settings")
        return self._states.of(queries, self.layers)

    def set_states(self, states: RecordedStates) -> None:
        self._states = states

    def check_edge(self, model: str, digest: str) -> None:
        """Raise UserError unless ``digest`` of ``model`` is that of the probe's edge model."""
        if digest != self.digest:
            raise UserError(
                f"the probe was trained with another edge model ({self.model}) than {model}, or its files changed: "
                "train it again with specdec route train --kind probe",
                key="path",
            )

    def save(self, folder: Path) -> None:
        readout, present = self._readout, MATRICES if self._readout.inner is None else (*MATRICES, *WIDE)
        arrays = {name: getattr(readout, name).astype(np.float32) for name in present}
        with (folder / ARRAYS).open("wb") as file:
            np.savez(file, allow_pickle=False, constant=np.array(readout.constant), **arrays)
        settings = ProbeSettings(2, ProbedModel(self.model, self.digest), list(self.layers))
        write_atomically(folder / SETTINGS, msgspec.json.encode(settings).decode() + "\n")

    @classmethod
    def load(cls, folder: Path) -> ProbeClassifier:
        try:
            settings = msgspec.convert(read_object(folder / SETTINGS), ProbeSettings)
        except (UserError, msgspec.ValidationError) as error:
            again = "train the probe again with specdec route train --kind probe"
            raise ValueError(f"{SETTINGS} is not as this version writes it ({error}): {again}") from error
        arrays = read_arrays(folder / ARRAYS)
        present = [*MATRICES, *(name for name in WIDE if name in arrays)]
        readout = Readout(
            **{name: arrays[name].astype(np.float64) for name in present}, constant=float(arrays["constant"])
        )
        if len(readout.mean) % len(settings.layers):
            raise ValueError(f"the arrays of {ARRAYS} do not fit the layers")
        return cls(readout, settings.layers, settings.edge.model, settings.edge.digest)


class ProbedModel(msgspec.Struct):
    model: str
    digest: str


class ProbeSettings(msgspec.Struct):
    format: Literal[2]
    edge: ProbedModel
    layers: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


def _chosen(known: Sequence[int], loss: Callable[[Sequence[int]], float]) -> list[int]:
    """Greedy forward selection: layers that each decrease the ``loss`` by ``GAIN``."""
    chosen: list[int] = []
    least = float("inf")
    while len(chosen) < min(MAX_LAYERS, len(known)):
        losses = {layer: loss([*chosen, layer]) for layer in known if layer not in chosen}
        best = min(losses, key=lambda layer: losses[layer])
        if losses[best] > least - GAIN:
            break
        chosen.append(best)
        least = losses[best]
    return sorted(chosen)


def _columns(states: Halves) -> Floats:
    """[queries, layers, values] as [queries, layers * values]."""
    return states.reshape(len(states), -1).astype(np.float64)


def _linear(ridge: float) -> Fit:
    return lambda x, targets: fit_linear(x, targets, ridge)


def _fitted(
    x: Floats, targets: Floats, parts: NDArray[np.intp], few: NDArray[np.intp], units: int | None, seed: int
) -> Readout:
    """Without ``units``, a hidden layer is used if it decreases the loss by ``GAIN``."""
    if units:
        return fit_hidden(x, targets, units, seed)
    chosen = min(RIDGES, key=lambda strength: _loss(x[few], targets[few], parts[few], _linear(strength)))
    if units is None:
        hidden = _loss(x, targets, parts, lambda x, targets: fit_hidden(x, targets, UNITS, seed))
        if hidden < _loss(x, targets, parts, _linear(chosen)) - GAIN:
            return fit_hidden(x, targets, UNITS, seed)
    return fit_linear(x, targets, chosen)


def _loss(x: Floats, targets: Floats, parts: NDArray[np.intp], fit: Fit) -> float:
    """Cross-validated mean cross-entropy (nats)."""
    total = 0.0
    for part in range(PARTS):
        inside = parts == part
        scores = np.clip(fit(x[~inside], targets[~inside])(x[inside]), 1e-9, 1 - 1e-9)
        held = targets[inside]
        total -= float(np.sum(held * np.log(scores) + (1 - held) * np.log(1 - scores)))
    return total / len(targets)
