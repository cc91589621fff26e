"""A probe learns from the layers that tell something, and reads the states of its own model alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.probe import ARRAYS, SETTINGS, ProbeClassifier
from ianvs_specdec.routing.learned.training import RouterRecipe, train
from ianvs_specdec.routing.outcomes.hidden_states import RecordedStates
from ianvs_specdec.routing.outcomes.recorded import Outcomes, digests

LAYERS, WIDTH = (0, 1, 2, 3), 8
QUERIES = tuple(Query((f"question {index}",), id=str(index)) for index in range(240))
LABELS = (np.random.default_rng(0).random(len(QUERIES)) < 0.5).astype(float)


def recorded(*telling: int, strength: float = 1.0) -> RecordedStates:
    """Noise, in which each layer of ``telling`` has a state of its own that follows the labels."""
    states = np.random.default_rng(1).normal(size=(len(QUERIES), len(LAYERS), WIDTH))
    for layer in telling:
        states[:, layer, layer] += strength * (2 * LABELS - 1)
    known, first = np.unique(digests(QUERIES), return_index=True)
    return RecordedStates("edge", "d" * 64, LAYERS, known, states[first].astype(np.float16))


def fit(states: RecordedStates, **options: Any) -> ProbeClassifier:
    return ProbeClassifier.fit(QUERIES, LABELS, states=states, **options)


def test_the_layer_that_tells_something_is_read() -> None:
    probe = fit(recorded(2))
    assert probe.layers == (2,)
    scores = probe.score(QUERIES)
    assert scores[LABELS == 1].mean() > scores[LABELS == 0].mean() + 0.3


@pytest.mark.slow
def test_a_further_layer_is_read_where_it_adds_something() -> None:
    assert fit(recorded(1, 3)).layers == (1, 3)
    assert fit(recorded(1, 3), layers=[0]).layers == (0,)


def curved() -> RecordedStates:
    """States that tell the label by how far they are from 0, to either side: no weighted sum of them follows it."""
    states = np.random.default_rng(1).normal(scale=0.3, size=(len(QUERIES), len(LAYERS), WIDTH))
    sides = np.random.default_rng(2).choice([-1.0, 1.0], len(QUERIES))
    states[:, 2, :4] += (3 * sides * LABELS)[:, None]
    known, first = np.unique(digests(QUERIES), return_index=True)
    return RecordedStates("edge", "d" * 64, LAYERS, known, states[first].astype(np.float16))


def test_a_hidden_layer_is_taken_where_no_line_divides(tmp_path: Path) -> None:
    states = curved()
    probe, flat = (fit(states, layers=[2], **options) for options in ({}, {"units": 0}))
    right = [((model.score(QUERIES) > 0.5) == (LABELS == 1)).mean() for model in (probe, flat)]
    assert right[0] > 0.9 > 0.75 > right[1]
    probe.save(tmp_path)
    loaded = ProbeClassifier.load(tmp_path)
    with pytest.raises(UserError, match="give --edge FILE"):
        loaded.score(QUERIES)
    loaded.set_states(states)
    np.testing.assert_allclose(loaded.score(QUERIES), probe.score(QUERIES), atol=1e-4)
    np.testing.assert_array_equal(fit(states, layers=[2]).score(QUERIES), probe.score(QUERIES))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"states": None}, "give --edge FILE"),
        ({"layers": [4]}, "layers must be some of 0 to 3"),
        ({"layers": 1}, "layers must be a list of layers"),
        ({"units": -1}, "units must be a whole number from 0"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        ProbeClassifier.fit(QUERIES, LABELS, **{"states": recorded(2), **options})


def edited(name: str, value: Any) -> Any:
    def edit(folder: Path) -> None:
        path = folder / SETTINGS
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    return edit


def array(name: str, value: Any) -> Any:
    def edit(folder: Path) -> None:
        np.savez(folder / ARRAYS, **{**dict(np.load(folder / ARRAYS)), name: value})

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / SETTINGS).unlink(),
        lambda folder: (folder / ARRAYS).write_bytes(b"nonsense"),
        edited("format", 1),
        edited("layers", [1, 2, 3]),
        array("weights", np.zeros(3, np.float32)),
        array("scale", np.zeros(WIDTH, np.float32)),
        array("constant", np.zeros(2)),
        array("inner", np.zeros((WIDTH, WIDTH), np.float32)),
    ],
)
def test_a_damaged_folder_is_one_message(tmp_path: Path, edit: Any) -> None:
    outcomes = Outcomes(QUERIES, 1.0 - LABELS, np.ones(len(QUERIES)))
    recipe = RouterRecipe(kind="probe", options={"layers": [2], "units": 0}, folds=2)
    train(outcomes, recipe, recorded(2)).save(tmp_path / "probe")
    edit(tmp_path / "probe")
    with pytest.raises(UserError, match="the router in it cannot be read"):
        TrainedRouter.load(tmp_path / "probe")
