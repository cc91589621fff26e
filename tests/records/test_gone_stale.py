"""Which earlier answers are said to have gone stale, and of what."""

from __future__ import annotations

from pathlib import Path

from ianvs_specdec.records.configuration import Configuration
from tests.records.test_journal import configuration, fill, messages, open_journal


def test_what_stands_beside_a_configuration_has_not_gone_stale(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    journal = open_journal(tmp_path, run="run-2")
    other_model = Configuration("models/other", {**configuration().value, "model": "new"})
    for other, side in (
        (configuration(backend="huggingface"), "edge"),
        (configuration(method="eagle"), "edge"),
        (other_model, "edge"),
        (configuration(sampling={"temperature": 0.5}), "cloud"),
    ):
        assert journal.explain_miss(other, messages(0), side) is None
    # A test case of this run still has it.
    journal.get(configuration().key(messages(0)))
    assert journal.explain_miss(configuration(length="fixed:4"), messages(0), "edge") is None


def test_the_files_that_changed_are_named(tmp_path: Path) -> None:
    files = {"abc": {"config.json": "1", "model.safetensors": "2"}}
    fill(tmp_path, 1, Configuration("models/edge", configuration().value, files))
    new = Configuration("models/edge", configuration(model="new").value, {"new": {**files["abc"], "config.json": "3"}})
    why = open_journal(tmp_path, run="run-2").explain_miss(new, messages(0), "edge")
    assert str(why).endswith("asked for again: config.json of model models/edge changed")
