"""The settings ``emulate`` and ``emulate_scale``: what is wrong is told before a model is loaded, answers stay the same
and their times are labelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.costs import read
from ianvs_specdec.records.identity import FileDigests
from tests.support.cost_tables import simple, written
from tests.support.models import build_model

CHAT = [{"role": "user", "content": "one two one two"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(build_model(tmp_path_factory.mktemp("emulated") / "model"))


@pytest.fixture
def table(tmp_path):
    return str(written(tmp_path, simple()))


@pytest.mark.parametrize(
    ("options", "part", "key"),
    [
        ({"emulate": "none.json"}, "none.json: cannot be read", "emulate"),
        ({"emulate_scale": 0}, "emulate_scale must be auto or a number above 0", "emulate_scale"),
        ({"emulate_scale": "much"}, "emulate_scale must be auto", "emulate_scale"),
    ],
)
def test_invalid_emulation_options_are_rejected(model, options, part, key):
    with pytest.raises(UserError) as told:
        backend("PromptLookup")(model, **options)
    assert part in str(told.value)
    assert told.value.key == key


def test_a_drafting_method_needs_draft_costs(model, tmp_path):
    table = str(written(tmp_path, simple(draft=False)))
    with pytest.raises(UserError, match="has no draft costs, and this method drafts"):
        backend("PromptLookup")(model, emulate=table)
    backend("autoregressive")(model, emulate=table)


def test_emulation_keeps_answers_and_labels_times(model, table, tmp_path):
    sampling = Sampling(max_tokens=6)
    with backend("PromptLookup")(model) as plain:
        expected = plain.generate(CHAT, sampling).token_ids
        assert plain.emulation() is None
        assert "emulated" not in plain.hardware()
    with backend("PromptLookup")(model, emulate=table, emulate_scale=0.5) as emulated:
        answer = emulated.generate(CHAT, sampling)
        assert answer.token_ids == expected
        assert emulated.hardware()["emulated"]["machine"] == "a stated one"
        told = emulated.emulation()
    assert told["scale"] == 0.5
    assert told["steps"] >= 1
    costs = read(Path(table))
    least = 0.5 * costs.step_seconds(0, 0, 0, 1, 1)
    assert answer.trace.ttft >= least


def test_identity_has_the_emulation(model, table, tmp_path):
    digests = FileDigests(tmp_path / "digests.json")
    plain, emulated, stretched = (
        backend("autoregressive")(model, **options).identity(digests)
        for options in ({}, {"emulate": table}, {"emulate": table, "emulate_scale": 2})
    )
    assert len({str(plain), str(emulated), str(stretched)}) == 3
    assert plain == {name: value for name, value in emulated.items() if name != "emulate"}
