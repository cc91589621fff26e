"""Prompts that were read for a router's sake are kept in the journal as answers are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.answers.lines import FILE_NAME, Prefill
from ianvs_specdec.workspace.kept import KeptAnswers

KEY = "a" * 64
PREFILL = Prefill(b"\x00\x3c\x00\xbc", 7, 0.0031415, 1700000000.25)


def journal(folder: Path, run: str = "run-1", fresh: bool = False) -> Journal:
    return Journal(folder / FILE_NAME, run, fresh)


def kept(folder: Path) -> Path:
    journal(folder).put_prefill(KEY, PREFILL, hardware={"processor": "test"})
    return folder / FILE_NAME


def test_a_prefill_comes_back_whole(tmp_path: Path) -> None:
    kept(tmp_path)
    for run, replayed in (("run-1", False), ("run-2", True)):
        found = journal(tmp_path, run).prefill(KEY)
        assert found is not None
        assert (found.prefill, found.replayed) == (PREFILL, replayed)
        assert journal(tmp_path).record(found.hardware)["value"] == {"processor": "test"}  # type: ignore[index]
    assert journal(tmp_path).prefill("b" * 64) is None
    assert journal(tmp_path, "run-2", fresh=True).prefill(KEY) is None


def test_it_is_no_answer_and_no_damage(tmp_path: Path) -> None:
    kept(tmp_path)
    found = journal(tmp_path)
    assert (len(found), found.get(KEY), found.corrupt) == (0, None, 0)
    assert KeptAnswers(tmp_path).failures("edge", "") is None


@pytest.mark.parametrize("rewrite", [lambda line: json.dumps({"more": 1, **line}), lambda line: json.dumps(line)])
def test_what_another_version_or_an_editor_wrote_is_read(tmp_path: Path, rewrite: Callable[[Any], str]) -> None:
    path = kept(tmp_path)
    path.write_text("".join(rewrite(json.loads(line)) + "\n" for line in path.read_text().splitlines()))
    found = journal(tmp_path).prefill(KEY)
    assert found is not None
    assert found.prefill == PREFILL


@pytest.mark.parametrize("name", ["states", "seconds", "issued", "prompt_tokens", "hardware"])
@pytest.mark.parametrize("value", [None, True, -1, "x", "AAA=", [], {}])
def test_any_value_in_any_field_is_right_or_none(tmp_path: Path, name: str, value: Any) -> None:
    path = kept(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1][name] = value
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    found = journal(tmp_path)
    read = found.prefill(KEY)
    right = (name, value) in (("hardware", "x"), ("states", "AAA="), ("hardware", "AAA="))
    assert (read is not None, found.corrupt) == (right, 0 if right else 1)
