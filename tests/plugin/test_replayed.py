"""What the journal answers: within a run, across runs, against the baseline, and never with another configuration."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ianvs_specdec.common.types import Completion
from ianvs_specdec.records.database import FILE_NAME, checksum
from ianvs_specdec.records.journal import Journal, read_answers
from tests.support.edge import Start, edge, row
from tests.support.models import build_model
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"


def test_times_at_another_concurrency_are_not_compared(
    job: Path, tiny_model: Path, new_run: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge(tiny_model).predict(row("x"))
    for concurrency, known in (("1", True), ("8", False)):
        new_run(fresh=False)
        monkeypatch.setenv("IANVS_CONCURRENCY", concurrency)
        answer = edge(tiny_model, backend="PromptLookup", use_cache=False).predict(row("x"))
        baseline = answer["turns"][0]["baseline"]
        assert baseline["identical"] is True
        assert (baseline["latency"] is not None) is known


def kept(job: Path) -> Completion:
    """The first answer that the journal has."""
    return next(read_answers(job / FILE_NAME))


def keep(job: Path, answer: Completion) -> None:
    """Have the journal hold this answer alone, in the place of its first."""
    encoded = msgspec.json.encode(answer)
    with closing(sqlite3.connect(job / FILE_NAME)) as connection, connection:
        connection.execute("DELETE FROM answers WHERE id > 1")
        (parts,) = connection.execute("SELECT key, run, machine FROM answers").fetchall()
        values = (encoded, checksum(*parts, encoded))
        connection.execute("UPDATE answers SET answer = ?, checksum = ?", values)
    Journal._open.clear()


def test_a_baseline_is_known_only_once_it_has_been_run(job: Path, tiny_model: Path) -> None:
    first = edge(tiny_model, backend="PromptLookup").predict(row("x"))
    assert first["turns"][0]["baseline"] is None
    edge(tiny_model).predict(row("x"))
    again = edge(tiny_model, backend="PromptLookup").predict(row("x"))
    assert again["cached"]
    assert again["turns"][0]["baseline"]["identical"] is True


def test_a_difference_to_the_baseline_is_found_and_near_ties_are_told_apart(job: Path, tiny_model: Path) -> None:
    edge(tiny_model).predict(row("x"))
    for ties, expected in (([(2, 0.0004)], True), ([(1, 0.0004)], False)):
        changed = kept(job)
        changed.token_ids[2] += 1
        changed.trace.near_ties = ties
        keep(job, changed)
        response = edge(tiny_model, backend="PromptLookup").predict(row("x"))
        baseline = response["turns"][0]["baseline"]
        assert (baseline["identical"], baseline["difference"], baseline["near_tie"]) == (False, 2, expected)
        changed.token_ids[2] -= 1
        keep(job, changed)
    changed.token_ids.append(5)
    keep(job, changed)
    baseline = edge(tiny_model, backend="PromptLookup").predict(row("x"))["turns"][0]["baseline"]
    assert (baseline["identical"], baseline["difference"]) == (False, len(changed.token_ids) - 1)


@pytest.mark.parametrize(("target", "known"), [("native", None), ("fused", False)])
def test_near_ties_that_nobody_measured_are_unknown(
    target: str, known: bool | None, job: Path, tiny_model: Path
) -> None:
    """The native step's own are none, but beside another engine it does not know them."""
    edge(tiny_model).predict(row("x"))
    changed = kept(job)
    changed.token_ids[2] += 1
    changed.trace.near_ties, changed.trace.target = [], target
    keep(job, changed)
    turn = edge(tiny_model, backend="huggingface").predict(row("x"))["turns"][0]
    assert (turn["baseline"]["identical"], turn["baseline"]["near_tie"]) == (False, known)


def test_cached_replayed_and_fresh(
    job: Path, tiny_model: Path, new_run: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = edge(tiny_model).predict(row("x"))
    assert (first["cached"], first["replayed"]) == (False, False)
    again = edge(tiny_model).predict(row("x"))
    assert (again["cached"], again["replayed"]) == (True, False)
    assert again["turns"][0]["trace"] == first["turns"][0]["trace"]
    new_run()
    third = edge(tiny_model).predict(row("x"))
    assert (third["cached"], third["replayed"]) == (False, True)
    new_run(fresh=True)
    fourth = edge(tiny_model).predict(row("x"))
    assert (fourth["cached"], fourth["replayed"]) == (False, False)
    assert fourth["turns"][0]["token_ids"] == first["turns"][0]["token_ids"]
    assert edge(tiny_model).predict(row("x"))["cached"]


def test_without_use_cache_it_is_asked_again_but_still_written(job: Path, tiny_model: Path, new_run: Start) -> None:
    edge(tiny_model, use_cache=False).predict(row("x"))
    assert not edge(tiny_model, use_cache=False).predict(row("x"))["cached"]
    assert edge(tiny_model).predict(row("x"))["cached"]


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.7}, {"dtype": "bfloat16"}, {"stop": ["zz"]}, {"threads": 1}],
)
def test_every_setting_that_matters_is_part_of_the_key(
    job: Path, tiny_model: Path, new_run: Start, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    edge(tiny_model).predict(row("x"))
    new_run()
    with caplog.at_level(logging.WARNING):
        assert not edge(tiny_model, **change).predict(row("x"))["replayed"]
    warnings = [record.getMessage() for record in caplog.records if "do not match" in record.getMessage()]
    assert len(warnings) == 1
    assert "1 earlier answers" in warnings[0]
    assert next(iter(change)) in warnings[0]


BESIDE = ("README.md", "notes.txt", "model.gguf", "optimizer.pt", "pytorch_model.bin", "evaluation.json", "old/a.bin")


@pytest.mark.parametrize("wanted", ["chat_template.jinja", "tokenizer.json", "config.json"])
def test_only_files_that_are_read_count(
    job: Path, tiny_model: Path, tmp_path: Path, new_run: Start, caplog: pytest.LogCaptureFixture, wanted: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    edge(folder).predict(row("x"))
    for name in BESIDE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    new_run()
    assert edge(folder).predict(row("x"))["replayed"]
    with (folder / wanted).open("a") as file:
        file.write("\n")
    new_run()
    with caplog.at_level(logging.WARNING):
        assert not edge(folder).predict(row("x"))["replayed"]
    assert f"asked for again: {wanted} of model {folder} changed" in caplog.text


def test_a_changed_head_is_named(job: Path, new_run: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = shutil.copytree(MODELS / "edge-eagle", tmp_path / "head")
    settings = {"backend": "EagleSpecDec", "head": str(head)}
    edge(MODELS / "edge", **settings).predict(row("x"))
    (head / "README.md").write_text("x")
    new_run()
    assert edge(MODELS / "edge", **settings).predict(row("x"))["replayed"]
    with (head / "config.json").open("a") as file:
        file.write("\n")
    new_run()
    with caplog.at_level(logging.WARNING):
        assert not edge(MODELS / "edge", **settings).predict(row("x"))["replayed"]
    assert "config.json of options.head changed" in caplog.text


def test_changed_model_files_are_noticed(job: Path, tiny_model: Path, tmp_path: Path, new_run: Start) -> None:
    folder = tmp_path / "own" / "model"
    shutil.copytree(tiny_model, folder)
    edge(folder).predict(row("x"))
    moved = tmp_path / "moved"
    folder.rename(moved)
    new_run()
    assert edge(moved).predict(row("x"))["replayed"]
    build_model(moved, seed=1)
    new_run()
    assert not edge(moved).predict(row("x"))["replayed"]


def test_options_of_other_back_ends_are_no_part_of_a_key(job: Path, tiny_model: Path, new_run: Start) -> None:
    edge(tiny_model).predict(row("x"))
    assert edge(tiny_model, max_ngram=2, api_retries=2).predict(row("x"))["cached"]
    assert not edge(tiny_model, backend="PromptLookup", max_ngram=2).predict(row("x"))["cached"]
    assert not edge(tiny_model, backend="PromptLookup").predict(row("x"))["cached"]
